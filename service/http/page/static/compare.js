// Two sources, or two targets of one source, side by side.

import { request, sentenceOf } from "./api.js";
import { scale } from "./attention.js";
import { fill, h, number } from "./dom.js";
import { bitmap, draw, layout, weights } from "./heatmap.js";
import { t } from "./i18n.js";
import { options, where } from "./requests.js";
import { FRESH, state, update } from "./state.js";
import { explainedText, nameOf } from "./text.js";

const turns = new WeakMap(); // a column to its last request

export function compare(panel, signal) {
  const sides = [h("div", { class: "column" }), h("div", { class: "column" })];
  const run = () => Promise.all([show(sides[0], state.source, state.given, signal), show(sides[1], state.source2 || state.source, state.given2, signal)]);
  const text = (key, label) => h("label", { class: "field wide" }, h("span", { class: "label" }, label), h("input", {
    type: "text", dir: "auto", name: key, value: state[key], spellcheck: false, on: { change: (event) => take(event.target) },
  }));
  const form = h(
    "form", { class: "pair", on: { submit: (event) => { event.preventDefault(); form.querySelectorAll("input").forEach(take); run(); } } },
    h("div", { class: "column" }, text("source", `${t("source")} · ${t("first")}`), text("given", `${t("target")} · ${t("first")}`)),
    h("div", { class: "column" }, text("source2", `${t("source")} · ${t("second")}`), text("given2", `${t("target")} · ${t("second")}`)),
    h("div", { class: "actions" }, h("button", { class: "primary", type: "submit" }, t("compare"))),
  );
  fill(panel, form, h("div", { class: "pair" }, sides), scale(), h("p", { class: "faint small" }, t("compareColours")));
  if (state.source && (state.source2 || state.given || state.given2)) run();
}

/** What was typed; with another source the output is another too. */
function take({ name, value }) {
  const isOther = name === "source" && value !== state.source;
  update({ [name]: value, ...(isOther ? FRESH : {}) });
}

export function compareBody(source, target) {
  const search = target ? { ...where(), target } : options();
  return { source, ...search, attention: ["cross"], average: "both", encoding: "uint8" };
}

async function show(column, source, target, signal) {
  if (!source) return fill(column, h("p", { class: "faint" }, t("needSource")));
  fill(column, h("p", { class: "faint" }, t("computing")));
  const turn = {};
  turns.set(column, turn);
  try {
    const explained = await request("/v1/explain", compareBody(source, target), signal);
    if (turns.get(column) !== turn) return null; // asked again meanwhile
    const detail = h("p", { class: "detail", role: "status" }, t("legend"));
    const sum = explained.steps.reduce((all, step) => all + step.logprob, 0);
    const total = t("total", { sum: number(sum, 3), mean: number(sum / explained.steps.length, 3) });
    const canvas = h("canvas", { class: "map", role: "img", "aria-label": t("cross") });
    fill(column, h("p", { class: "given", dir: "auto" }, explained.source.text), explainedText(explained, detail), h("p", {}, total), detail, h("div", { class: "scroll" }, canvas));
    map(canvas, explained, column.clientWidth);
  } catch (error) {
    if (turns.get(column) !== turn || error.name === "AbortError") return null;
    fill(column, h("p", { class: "error" }, sentenceOf(error)));
  }
  return null;
}

function map(canvas, explained, width) {
  const w = weights(explained.attention[0]);
  const rows = explained.target.tokens.map(nameOf);
  const columns = explained.source.tokens.map(nameOf);
  const cells = bitmap(rows.length, columns.length, (row, column) => w.at(0, 0, row, column));
  draw(canvas, layout(rows, columns, Math.min(width, 520)), rows, columns, cells, { row: null, column: null });
}
