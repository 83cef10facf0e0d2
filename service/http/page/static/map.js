// The whole model as one diagram, with the values of this text in it, step by step.

import { fill, h, percent, svg } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { colours, lengths, look, mostValues, sizes, smallMap, weightsOf } from "./inside.js";
import { finalNorm, norm, plus, stream } from "./stream.js";
import { state, update } from "./state.js";
import { nameOf } from "./text.js";

const EVERY = 900; // ms
/** @type {number | undefined} */
let timer;

export async function map(panel, signal) {
  clearInterval(timer);
  timer = undefined;
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const began = performance.now();
  const [wanted, note] = mostOf();
  const explained = await look(wanted, signal);
  const step = Math.min(state.step ?? explained.target.tokens.length, explained.target.tokens.length);
  const asked = performance.now();
  const diagram = h("div", { class: "diagram" });
  const redraw = (at) => { fill(diagram, encoder(explained), decoder(explained, at), svg("svg", { class: "arrows", "aria-hidden": "true" })); point(diagram); };
  redraw(step);
  fill(panel, stepper(explained, step, redraw), note ? h("p", { class: "faint small", role: "status" }, t(note)) : null, diagram, colours(explained.attention.length > 0), h("p", { class: "faint small" }, t("mapNote")));
  new ResizeObserver(() => point(diagram)).observe(diagram); // draws the arrows as soon as it is laid out
  panel.dataset.asked = (asked - began).toFixed(1); // ms; the first drawing is apart, up to its first frame
  requestAnimationFrame(() => setTimeout(() => { panel.dataset.drawn = (performance.now() - asked).toFixed(1); }));
  return null;
}

/** As much as an answer may have, and what is said of the rest: the stream is left out first, then heads are averaged. */
function mostOf() {
  const { encoder_layers, decoder_layers, d_model, heads } = sizes();
  const { source, target } = lengths();
  const [own, masked, cross] = [encoder_layers * source * source, decoder_layers * target * target, decoder_layers * target * source];
  const values = d_model * ((4 * encoder_layers + 1) * source + (6 * decoder_layers + 1) * target);
  const kinds = ["encoder", "decoder", "cross"];
  /** @type {[number, Record<string, any>, string | null][]} */
  const choices = [
    [heads * (own + masked + cross) + values, { attention: kinds, include: ["structure", "residual"] }, null],
    [heads * (own + masked + cross), { attention: kinds, include: ["structure"] }, "mapNoStream"],
    [own + masked + cross, { attention: kinds, average: "heads", include: ["structure"] }, "mapMean"],
    [cross, { attention: ["cross"], average: "heads", include: ["structure"] }, "mapCross"],
  ];
  const [, wanted, note] = choices.find(([count]) => count <= mostValues()) ?? [0, { attention: [], include: ["structure"] }, "mapNone"];
  return /** @type {[Record<string, any>, string | null]} */ ([wanted, note]);
}

/** From the encoder's output to every cross-attention, where both stacks are side by side. */
function point(diagram) {
  const [memory, arrows] = [diagram.querySelector(".memory"), diagram.querySelector(".arrows")];
  if (!memory || !arrows) return;
  const area = diagram.getBoundingClientRect();
  const from = memory.getBoundingClientRect();
  const crosses = [...diagram.querySelectorAll(".block.cross")].map((block) => block.getBoundingClientRect());
  if (!crosses.length || crosses[0].left <= from.right) return fill(arrows);
  const x = from.right - area.left;
  const middle = (diagram.querySelector(".stack:nth-child(2)")?.getBoundingClientRect().left ?? crosses[0].left) - area.left - 12;
  const start = from.top + from.height / 2 - area.top;
  fill(arrows, crosses.map((block) => {
    const [end, at] = [block.left - area.left, block.top + block.height / 2 - area.top];
    return [svg("path", { d: `M ${x} ${start} H ${middle} V ${at} H ${end - 7}` }), svg("path", { class: "tip", d: `M ${end - 9} ${at - 5} L ${end} ${at} L ${end - 9} ${at + 5} Z` })];
  }));
}

function stepper(explained, step, redraw) {
  const count = explained.target.tokens.length;
  const label = h("output", {});
  const slider = h("input", { type: "range", min: 1, max: count, step: 1, value: step, "aria-label": t("stepOf") });
  const show = (at) => {
    slider.value = at;
    label.textContent = `${t("step", { n: at, all: count })}: ${nameOf(explained.target.tokens[at - 1])}`;
    redraw(at);
  };
  const move = (at) => { update({ step: at >= count ? null : at }); show(at); };
  slider.addEventListener("input", () => move(Number(slider.value)));
  const play = h("button", { type: "button" }, t("play"));
  const stop = () => { clearInterval(timer); timer = undefined; play.textContent = t("play"); };
  play.addEventListener("click", () => {
    if (timer !== undefined) return stop();
    let at = Number(slider.value) >= count ? 0 : Number(slider.value);
    play.textContent = t("pause");
    const next = () => {
      if (!play.isConnected) return clearInterval(timer);
      move(at += 1);
      return at >= count ? stop() : null;
    };
    timer = setInterval(next, EVERY);
    return next();
  });
  label.textContent = `${t("step", { n: step, all: count })}: ${nameOf(explained.target.tokens[step - 1])}`;
  return h("div", { class: "options stepper" }, play, slider, label);
}

/** A part of the model; a click on its name opens the view that shows it. */
function block(name, note, opens, ...inner) {
  return h("div", { class: opens.kind === "cross" ? "block cross" : "block" }, h("button", { type: "button", class: "block-name", on: { click: () => update(opens, false) } }, name), note ? h("span", { class: "faint small" }, note) : null, inner);
}

const words = (tokens, last = Infinity) => h("p", { class: "flow" }, tokens.map((token, i) => h("span", { class: i < last ? "flow-token" : "flow-token later" }, nameOf(token))));

/** A sub-layer between its norm and its residual connection, as the model has them: before it, or after. */
function sublayer(explained, kind, layer, opens, note, inner, last) {
  const of = { explained, kind, layer, last };
  const isPre = explained.structure?.norm === "pre";
  const name = t(kind.endsWith("feed_forward") ? "feedForward" : `block_${kind}`);
  return [
    block(name, note, opens, isPre ? norm(of) : null, inner, plus(of), isPre ? null : norm(of)),
    stream(of),
  ];
}

/** An attention with its heads as small maps; rows that are not decoded yet are empty. */
function attention(explained, kind, layer, last = Infinity, read = last) {
  const found = explained.attention.some((each) => each.kind === kind) ? weightsOf(explained, kind) : null;
  const [, heads, rows, columns] = found?.shape ?? [0, 0, 0, 0];
  const isMean = found !== null && heads < found.heads.length;
  const maps = Array.from({ length: heads }, (_, head) => {
    const opens = isMean ? { tab: "attention", kind, layer, head: -1 } : { tab: "head", kind, layer, head };
    const label = isMean ? t("meanOf", { layer: layer + 1 }) : t("headName", { layer: layer + 1, head: head + 1 });
    return h("button", { type: "button", class: "head-map", "aria-label": label, title: label, on: { click: () => update(opens, false) } }, smallMap(found.row(layer, head), rows, columns, last, 44));
  });
  return sublayer(explained, kind, layer, { tab: "attention", kind, layer, head: -1 }, null, h("div", { class: "head-maps" }, maps), read);
}

function feedForward(explained, stack, layer, read = Infinity) {
  const { activation } = explained.structure ?? {};
  const note = activation ? `${sizes().d_model} → ${sizes().d_ff} → ${sizes().d_model}, ${t(`activation_${activation}`)}` : null;
  return sublayer(explained, `${stack}_feed_forward`, layer, { tab: "whatif" }, note, null, read);
}

function embedding(explained, side) {
  const { positions, added_positions: added } = explained.structure ?? {};
  return block(t("embedding"), t(added?.includes(side) ? `plus_${positions}` : positions === "relative" ? "plus_relative" : "noPositions"), { tab: "embeddings", side });
}

function encoder(explained) {
  const { encoder_layers: layers } = sizes();
  const parts = [h("h3", {}, t("encoderSide")), words(explained.source.tokens), embedding(explained, "source"), stream({ explained, kind: "encoder", layer: null, last: Infinity })];
  for (let layer = 0; layer < layers; layer++) {
    parts.push(h("div", { class: "layer" }, h("span", { class: "layer-name" }, t("layerName", { layer: layer + 1 })), attention(explained, "encoder", layer), feedForward(explained, "encoder", layer)));
  }
  parts.push(finalNorm({ explained, kind: "encoder_feed_forward", layer: layers - 1, last: Infinity }), h("p", { class: "faint small memory" }, t("memoryNote")));
  return h("div", { class: "stack" }, parts);
}

function decoder(explained, step) {
  const { decoder_layers: layers } = sizes();
  const last = step + explained.decoder_inputs.length - explained.target.tokens.length; // tokens that are read up to this step
  const parts = [h("h3", {}, t("decoderSide")), words(explained.decoder_inputs, last), embedding(explained, "target"), stream({ explained, kind: "decoder", layer: null, last })];
  for (let layer = 0; layer < layers; layer++) {
    parts.push(h("div", { class: "layer" }, h("span", { class: "layer-name" }, t("layerName", { layer: layer + 1 })),
      attention(explained, "decoder", layer, step, last), attention(explained, "cross", layer, step, last), feedForward(explained, "decoder", layer, last)));
  }
  const { d_model, target_vocab } = sizes();
  const linear = block(t("linear"), `${d_model} → ${target_vocab.toLocaleString("en")}: ${t("logits")}`, { tab: "embeddings", side: "target" });
  return h("div", { class: "stack" }, parts, finalNorm({ explained, kind: "decoder_feed_forward", layer: layers - 1, last }), linear, softmax(explained, step));
}

/** The next token's distribution at this step. */
function softmax(explained, step) {
  const found = explained.steps[step - 1];
  const walk = explained.target.tokens.slice(0, step - 1).map((token) => token.token ?? token.text);
  const rows = found.alternatives.map((each) => h("div", { class: each.id === found.id ? "mini-bar chosen" : "mini-bar", vars: { "--share": Math.exp(each.logprob).toFixed(3) } }, h("bdi", {}, nameOf(each)), h("span", {}, percent(Math.exp(each.logprob)))));
  return block(t("softmax"), t("softmaxNote", { n: sizes().target_vocab.toLocaleString("en") }), { tab: "next", walk, done: 0 }, h("div", { class: "mini-bars" }, rows));
}
