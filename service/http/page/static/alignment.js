// Lines between tokens of source and target that belong together.

import { field, fill, h, rove, select, svg } from "./dom.js";
import { explain, session, stepsWanted } from "./generate.js";
import { t } from "./i18n.js";
import { state, update } from "./state.js";
import { isRightToLeft, nameOf } from "./text.js";

const GAP = 10;
const HEIGHT = 190;
const FONT = "15px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace";

export async function alignment(panel) {
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const explained = await explain(stepsWanted());
  const found = explained.alignment;
  const how = t("alignmentBy", { layer: found.layer + 1, heads: found.heads.map((head) => head + 1).join(", "), method: t(found.method) });
  const methods = [["", t("methodBundle")], ["argmax", t("argmax")], ["mutual", t("mutual")]];
  return fill(
    panel, h("div", { class: "options" }, field(t("method"), select(methods, state.align ?? "", (align) => update({ align: align || null })))),
    h("div", { class: "scroll", dir: isRightToLeft(explained.source.text) ? "rtl" : "ltr" }, picture(explained)), h("p", { class: "faint small" }, `${how} · ${t(`by_${found.chosen_by}`)}`), words(explained),
  );
}

export const pairsOf = (text) => text.split(" ").filter(Boolean).map((pair) => pair.split("-").map(Number));

/** Two rows of tokens, and a line for each pair; a token under the pointer lights its lines. */
function picture(explained) {
  const source = row(explained.source);
  const target = row(explained.target);
  const width = Math.max(source.width, target.width);
  const side = isRightToLeft(explained.source.text) ? 1 : 0; // where what is too wide is read from
  const shift = (part) => (width - part.width) * (width > document.documentElement.clientWidth ? side : 0.5);
  const lines = pairsOf(explained.alignment.pairs).map(([s, n]) => {
    const x1 = shift(source) + source.middles[s];
    const x2 = shift(target) + target.middles[n];
    return svg("path", { class: "line", "data-source": s, "data-target": n, d: `M${x1} 40C${x1} 95 ${x2} 95 ${x2} ${HEIGHT - 42}` });
  });
  const drawing = svg("svg", { class: "alignment", width: width + 4, height: HEIGHT, viewBox: `-2 0 ${width + 4} ${HEIGHT}`, role: "group", "aria-label": t("alignmentLabel") }, lines);
  tokens(drawing, source, shift(source), 26, "source", lines);
  tokens(drawing, target, shift(target), HEIGHT - 22, "target", lines);
  return rove(drawing, ".node");
}

function row({ text: whole, tokens }) {
  const context = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  context.font = FONT;
  let x = 0;
  const middles = [];
  const boxes = tokens.map((token) => {
    const size = Math.max(20, context.measureText(nameOf(token)).width + 14);
    const box = { text: nameOf(token), isMark: token.start === null, x, size };
    middles.push(x + size / 2);
    x += size + GAP;
    return box;
  });
  const width = x - GAP;
  if (!isRightToLeft(whole)) return { boxes, middles, width };
  return { boxes: boxes.map((box) => ({ ...box, x: width - box.x - box.size })), middles: middles.map((middle) => width - middle), width };
}

function tokens(drawing, side, shift, y, name, lines) {
  side.boxes.forEach(({ text, isMark, x, size }, i) => {
    const light = (isOn) => () => {
      group.classList.toggle("here", isOn);
      for (const line of lines) line.classList.toggle("here", isOn && line.dataset[name] === String(i));
      drawing.classList.toggle("lit", isOn);
    };
    const group = svg(
      "g", { class: isMark ? "node mark" : "node", on: { mouseenter: light(true), mouseleave: light(false), focus: light(true), blur: light(false) } },
      svg("rect", { x: shift + x, y: y - 17, width: size, height: 26, rx: 5 }), svg("text", { x: shift + x + size / 2, y, "text-anchor": "middle", direction: "ltr" }, text),
    );
    drawing.append(group);
  });
}

/** Which words belong together, by their places in the texts. */
function words({ alignment: found, source, target }) {
  const cut = (text, { start, end }) => Array.from(text).slice(start, end).join("");
  const joined = new Map();
  for (const pair of found.words) {
    const key = `${pair.source.start}-${pair.source.end}`;
    if (!joined.has(key)) joined.set(key, [cut(source.text, pair.source), []]);
    joined.get(key)[1].push(cut(target.text, pair.target));
  }
  const rows = [...joined.values()].map(([from, to]) => h("tr", {}, h("td", { dir: "auto" }, from), h("td", { class: "faint" }, "→"), h("td", { dir: "auto" }, to.join(" "))));
  return rows.length ? [h("h3", {}, t("words")), h("table", { class: "plain" }, h("tbody", {}, rows))] : null;
}
