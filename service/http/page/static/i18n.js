// The words of the page in English and Chinese.

import { state } from "./state.js";

const WORDS = {
  tagline: ["what a Transformer does, as it is served", "看见正在服务的 Transformer 如何工作"],
  skip: ["Skip to the output", "跳到输出"],
  source: ["Source", "源文本"],
  sourceHint: ["Type a text and press Enter", "输入文本，按回车"],
  generate: ["Generate", "生成"], stop: ["Stop", "停止"], examples: ["Examples", "示例"],
  mode: ["Search", "解码方式"], greedy: ["greedy", "贪心"], beam: ["beam", "束搜索"], sample: ["sampling", "采样"],
  beamSize: ["beam size", "束宽"], count: ["hypotheses", "候选数"], samples: ["samples", "样本数"],
  penalty: ["length penalty", "长度惩罚"], temperature: ["temperature", "温度"], topp: ["top-p", "top-p"],
  seed: ["seed", "随机种子"], anySeed: ["random", "随机"], model: ["Model", "模型"],
  from: ["from", "源语言"], to: ["to", "目标语言"],
  output: ["Output", "输出"], hypotheses: ["Hypotheses", "候选"], score: ["score", "得分"],
  nothing: ["The output appears here, token by token.", "输出会在这里逐词元出现。"],
  endName: ["⟨end⟩", "⟨结束⟩"], startName: ["⟨start⟩", "⟨开始⟩"],
  empty: ["(empty text)", "（空文本）"],
  legend: ["tint: improbable; line beneath: entropy", "底色越深概率越低；下划线长度为熵"],
  tokenDetail: ["{token}: probability {p}, entropy {h} nats. Instead: {others}", "{token}：概率 {p}，熵 {h} nat。其他：{others}"],
  tokenBrief: ["{token}: probability {p}", "{token}：概率 {p}"],
  finish_length: ["stopped at the maximum length", "到达最大长度"], finish_deadline: ["stopped by the deadline", "超时停止"],
  timing: ["{queue} ms queue, {encode} ms encode, {decode} ms decode; first token after {first} ms, all in {all} ms, network included",
    "排队 {queue} ms，编码 {encode} ms，解码 {decode} ms；首个词元 {first} ms，共 {all} ms（含网络）"],
  usage: ["{source} source tokens, {target} target tokens", "源 {source} 个词元，目标 {target} 个词元"],
  tab_next: ["Next token", "下一个词元"], tab_attention: ["Attention", "注意力"], tab_alignment: ["Alignment", "对齐"],
  tab_beam: ["Beam", "束搜索树"], tab_compare: ["Compare", "比较"], tab_model: ["Model", "模型"],
  nextIntro: ["The softmax over the next token. Choose one to go on with it.", "下一个词元的 softmax 分布。点选一个继续。"],
  soFar: ["So far", "已解码"], startHere: ["start", "开始"], back: ["Back", "后退"], restart: ["From the start", "重新开始"],
  takeBest: ["Take the most probable", "取概率最大者"], draw: ["Draw one", "随机抽取"],
  cut: ["top-p {p}: {n} of {all} kept", "top-p {p}：保留 {n} / {all}"],
  more: ["and {n} more, {p} together", "另有 {n} 个，合计 {p}"],
  entropy: ["entropy {h} nats at temperature {t}", "温度 {t} 时的熵：{h} nat"],
  tail: ["Computed from the {n} most probable tokens.", "仅由概率最大的 {n} 个词元计算。"],
  ended: ["The end token came: the text is complete.", "已到结束词元：文本完成。"],
  noAnswer: ["There is no output to show yet.", "还没有可显示的输出。"],
  needSource: ["Type a source text first.", "请先输入源文本。"],
  kind: ["attention", "注意力"], cross: ["cross: target to source", "交叉：目标看源"], encoder: ["encoder: source to source", "编码器：源看源"],
  decoder: ["decoder: target to target", "解码器：目标看目标"], layer: ["layer", "层"], head: ["head", "头"], mean: ["mean", "平均"],
  allHeads: ["All heads", "全部注意力头"], headName: ["layer {layer}, head {head}", "第 {layer} 层，头 {head}"],
  mapLabel: ["Attention weights. Arrow keys move from cell to cell.", "注意力权重。用方向键移动。"],
  looks: ["{row} looks at {column}: {p}", "{row} 看 {column}：{p}"],
  hoverHint: ["Point at a token or a cell: what it looks at lights up.", "指向词元或格子，查看它关注的内容。"],
  rowsAre: ["rows: {rows}; columns: {columns}; each row sums to 1", "行：{rows}；列：{columns}；每行之和为 1"],
  sourceTokens: ["source", "源"], targetTokens: ["target", "目标"], readTokens: ["what the decoder has read", "解码器已读"],
  attentionCost: ["attention in {precision}, {ms} ms", "注意力以 {precision} 计算，{ms} ms"],
  alignmentBy: ["layer {layer}, heads {heads}, {method}", "第 {layer} 层，头 {heads}，{method}"],
  by_bundle: ["chosen at export", "导出时选定"], by_request: ["chosen here", "在此选定"],
  by_default: ["the mean of the last layer: this bundle has no choice of its own", "最后一层的平均：此模型包未作选择"],
  method: ["method", "方法"], methodBundle: ["the bundle's", "模型包默认"], argmax: ["argmax", "argmax"], mutual: ["mutual", "双向一致"],
  words: ["Words", "词"], alignmentLabel: ["Lines between aligned tokens of source and target", "源与目标对齐词元之间的连线"],
  noTree: ["Samples have no tree. Choose greedy or beam.", "采样没有搜索树。请选择贪心或束搜索。"],
  step: ["step {n} of {all}", "第 {n} 步，共 {all} 步"], play: ["Play", "播放"], pause: ["Pause", "暂停"],
  treeLegend: ["kept", "保留"], treePruned: ["pruned", "剪去"], treeFinished: ["finished", "完成"], treeBest: ["the answer", "答案"],
  treeLabel: ["The beam search as a tree, one column a step", "束搜索树，每列一步"],
  nodeDetail: ["{token}: {state}; log-probability {logprob}, sum {sum}, score {score}", "{token}：{state}；对数概率 {logprob}，累计 {sum}，得分 {score}"],
  compareIntro: ["Two sources, or two targets of one source. An empty target is what the model answers.", "比较两个源文本，或同一源的两个目标。目标留空则由模型生成。"],
  target: ["Target", "目标文本"], compare: ["Compare", "比较"], first: ["Left", "左"], second: ["Right", "右"],
  total: ["log-probability {sum}, per token {mean}", "对数概率 {sum}，每词元 {mean}"],
  sizes: ["Sizes", "规模"], source_vocab: ["source vocabulary", "源词表"], target_vocab: ["target vocabulary", "目标词表"],
  d_model: ["model width", "模型宽度"], d_ff: ["feed-forward width", "前馈宽度"], heads: ["heads", "注意力头"],
  encoder_layers: ["encoder layers", "编码器层"], decoder_layers: ["decoder layers", "解码器层"], max_length: ["positions", "位置数"],
  serving: ["Serving", "服务"], precision: ["precision", "精度"], provider: ["provider", "计算后端"], threads: ["threads", "线程"],
  lanes: ["lanes", "解码线程"], version: ["version", "版本"], certificate: ["Certificate", "证书"],
  holds: ["On {samples} samples log-probabilities are within {drift} nats of torch's; {tolerance} is allowed.", "在 {samples} 个样本上，对数概率与 torch 相差不超过 {drift} nat（容许 {tolerance}）。"],
  positions: ["Positions", "位置编码"], positionsNote: ["Sine and cosine of the position, as in the paper: each row a position, each column a dimension. A model with learned positions has others.",
    "正弦与余弦位置编码，与论文一致：每行一个位置，每列一个维度。使用可学习位置的模型与此不同。"],
  live: ["Live", "实时"], perSecond: ["requests per second", "每秒请求"], tokensPerSecond: ["target tokens per second", "每秒目标词元"],
  latency: ["mean latency, ms", "平均延迟 ms"], running: ["running", "运行中"], waiting: ["waiting", "排队"],
  link: ["Copy link", "复制链接"], copied: ["Copied.", "已复制。"], curl: ["curl", "curl"], copy: ["Copy", "复制"], close: ["Close", "关闭"],
  saveHtml: ["Save HTML", "保存 HTML"], savePng: ["Save PNG", "保存 PNG"], saveFailed: ["The picture could not be made: {why}.", "无法生成图片：{why}。"],
  theme: ["Theme", "主题"], light: ["Light", "浅色"], dark: ["Dark", "深色"], language: ["Language", "语言"],
  key: ["API key", "API 密钥"], keyHint: ["Kept in memory until this page closes.", "仅保存在内存中，关闭页面即消失。"], useKey: ["Use the key", "使用密钥"],
  needKey: ["This service wants an API key. Type it above.", "此服务需要 API 密钥，请在上方输入。"],
  wrongKey: ["The service does not know this API key. Type another one above.", "服务不认识此 API 密钥，请重新输入。"],
  gone: ["The server at {host} does not answer. Is it still running?", "{host} 的服务器没有响应。它还在运行吗？"],
  broken: ["The connection ended before the answer was complete.", "回答尚未完整，连接已断开。"],
  status: ["The server answered with status {status}.", "服务器返回状态 {status}。"],
  again: ["Try again in {seconds} s.", "请在 {seconds} 秒后重试。"],
  keyLetters: ["This key has letters that a request cannot carry. Type another one above.", "此密钥含有请求无法携带的字符，请重新输入。"],
  unknownChoice: ["The link names {names}, which this service does not have: its default is used instead.", "此服务没有链接所指定的 {names}，已改用默认值。"],
  computing: ["Computing…", "计算中……"], api: ["API", "API"],
};

export const LANGUAGES = [["en", "English"], ["zh", "中文"]];

export function language() {
  return state.lang ?? (navigator.language.startsWith("zh") ? "zh" : "en");
}

/** The words for `name`, with {places} filled. */
export function t(name, values = {}) {
  const words = WORDS[name];
  if (!words) return name;
  return words[language() === "zh" ? 1 : 0].replace(/\{(\w+)\}/g, (_, key) => String(values[key]));
}

/** @returns {NodeListOf<HTMLInputElement>} */
const all = (root, selector) => root.querySelectorAll(selector);

/** Every element with data-t gets its words, with data-t-label its accessible name. */
export function translate(root = document) {
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  for (const element of all(root, "[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of all(root, "[data-t-label]")) element.setAttribute("aria-label", t(element.dataset.tLabel));
  for (const element of all(root, "[data-t-hint]")) element.placeholder = t(element.dataset.tHint);
}
