// Attention by layer and head: a map, all heads at a glance, and the same lit up in the texts.

import { field, fill, h, percent, select } from "./dom.js";
import { explain, mapWanted, session } from "./generate.js";
import { bitmap, draw, layout, paint, weights } from "./heatmap.js";
import { t } from "./i18n.js";
import { state, update } from "./state.js";
import { nameOf, tokenText } from "./text.js";

export const KINDS = ["cross", "encoder", "decoder"];

export async function attention(panel, signal) {
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const explained = await explain(mapWanted(), signal);
  const found = withHeads(explained.attention[0]);
  const view = makeView(explained, found);
  fill(panel, controls(found), view.texts, view.readout, h("div", { class: "split" }, h("div", { class: "scroll" }, view.canvas), heads(view, found)), legend(found, explained));
  view.redraw({ row: null, column: null }, panel);
  return null;
}

/** Where heads were averaged there is none to choose. */
const withHeads = (found) => (found.shape[1] < found.heads.length ? { ...found, heads: [] } : found);

function controls(found) {
  const layers = (session.info?.bundle.sizes[state.kind === "encoder" ? "encoder_layers" : "decoder_layers"]) ?? found.layers.length;
  const range = (count) => Array.from({ length: count }, (_, i) => [String(i), String(i + 1)]); // people count from 1
  return h(
    "div", { class: "options" },
    field(t("kind"), select(KINDS.map((kind) => [kind, t(kind)]), state.kind, (kind) => update({ kind }))),
    field(t("layer"), select(range(layers), String(Math.min(state.layer, layers - 1)), (layer) => update({ layer: Number(layer) }))),
    field(t("head"), select([["-1", t("mean")], ...range(found.heads.length)], String(state.head), (head) => update({ head: Number(head) }))),
  );
}

/** The map of the layer and head that are chosen, joined with the tokens of both texts. */
function makeView(explained, found) {
  const w = weights(found);
  const layer = Math.max(0, found.layers.indexOf(Math.min(state.layer, found.layers.at(-1))));
  const head = Math.min(state.head, w.heads - 1);
  const rows = found.rows === "source" ? explained.source.tokens : explained.target.tokens;
  const columns = found.columns === "source" ? explained.source.tokens : explained.decoder_inputs;
  const value = (row, column) => w.at(layer, head, row, column);
  const canvas = h("canvas", { class: "map", tabIndex: 0, role: "img", "aria-label": t("mapLabel") });
  const readout = h("p", { class: "detail", role: "status" }, t("hoverHint"));
  const view = { canvas, readout, w, rows, columns, layer, head, value, lit: { row: null, column: null } };
  const rowNames = rows.map(nameOf);
  const columnNames = columns.map(nameOf);
  const cells = bitmap(rows.length, columns.length, value);
  /** @type {Layout | null} */
  let place = null;
  view.redraw = (lit, /** @type {HTMLElement | null} */ panel = null) => {
    if (panel) place = layout(rowNames, columnNames, Math.min(panel.clientWidth, 720));
    view.lit = lit;
    draw(canvas, place, rowNames, columnNames, cells, lit);
  };
  view.light = (lit) => {
    if (lit.row === view.lit.row && lit.column === view.lit.column) return;
    view.redraw(lit);
    lightTexts(view, found);
    readout.textContent = describe(view);
  };
  listen(view, () => place);
  view.texts = texts(view, explained, found);
  return view;
}

function describe({ lit: { row, column }, rows, columns, value }) {
  if (row === null && column === null) return t("hoverHint");
  if (row !== null && column !== null) return t("looks", { row: nameOf(rows[row]), column: nameOf(columns[column]), p: percent(value(row, column)) });
  const isRow = row !== null;
  const items = isRow
    ? columns.map((token, i) => [nameOf(token), value(row, i)])
    : rows.map((token, i) => [nameOf(token), value(i, column)]);
  const best = items.filter(([, p]) => p > 0.004).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([text, p]) => `${text} ${percent(p)}`).join(", ");
  return `${nameOf(isRow ? rows[row] : columns[column])} ${isRow ? "→" : "←"} ${best}`;
}

/** The pointer and the arrow keys on the map. */
function listen(view, place) {
  const { canvas } = view;
  const clear = () => view.light({ row: null, column: null });
  canvas.addEventListener("mousemove", (event) => {
    const { left, top, cell } = place();
    const column = Math.floor((event.offsetX - left) / cell);
    const row = Math.floor((event.offsetY - top) / cell);
    const isRow = row >= 0 && row < view.rows.length;
    const isColumn = column >= 0 && column < view.columns.length;
    view.light({ row: isRow ? row : null, column: isColumn ? column : null });
  });
  canvas.addEventListener("mouseleave", clear);
  canvas.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const within = (x, size) => Math.max(0, Math.min(size - 1, x));
    const { row, column } = view.lit;
    view.light({ row: within((row ?? 0) + down, view.rows.length), column: within((column ?? 0) + right, view.columns.length) });
  });
}

/** Both texts; a token under the pointer or the focus is the row, or the column, that lights up. */
function texts(view, explained, found) {
  view.spans = { source: [], target: [] };
  const side = (name) => tokenText(explained[name], (span, i) => {
    view.spans[name][i] = span;
    const light = () => {
      const lit = litBy(name, i, found);
      if (lit) view.light(lit);
    };
    for (const event of ["mouseenter", "focus"]) span.addEventListener(event, light);
    for (const event of ["mouseleave", "blur"]) span.addEventListener(event, () => view.light({ row: null, column: null }));
  }, "tokens lightable");
  const row = (name) => h("div", { class: "side" }, h("span", { class: "label" }, t(`${name}Tokens`)), side(name));
  return h("div", { class: "texts" }, row("source"), row("target"));
}

function litBy(name, i, found) {
  if (found.kind === "cross") return name === "target" ? { row: i, column: null } : { row: null, column: i };
  const own = found.kind === "encoder" ? "source" : "target";
  return name === own ? { row: i, column: null } : null;
}

/** Tokens are lit by the weights of the row or the column. */
function lightTexts(view, found) {
  const { spans, lit, rows, columns, value } = view;
  const rowSide = spans[found.rows];
  const columnSpan = (j) => (found.columns === "source" ? spans.source[j] : spans.target[columns[j].index]);
  for (const span of [...spans.source, ...spans.target]) {
    span?.style.setProperty("--lit", "0");
    span?.classList.remove("here");
  }
  if (lit.row !== null) columns.forEach((_, j) => columnSpan(j)?.style.setProperty("--lit", value(lit.row, j).toFixed(3)));
  else if (lit.column !== null) rows.forEach((_, i) => rowSide[i]?.style.setProperty("--lit", value(i, lit.column).toFixed(3)));
  if (lit.row !== null) rowSide[lit.row]?.classList.add("here");
  if (lit.column !== null) columnSpan(lit.column)?.classList.add("here");
}

/** Heads in a row where there is little room, so that layers begin rows. */
const across = (heads) => [4, 3, 2].find((count) => heads % count === 0) ?? Math.min(heads, 4);

/** Small maps of all heads; a click chooses one. */
function heads(view, found) {
  if (!found.heads.length) return null;
  const { w, rows, columns } = view;
  const cell = Math.max(1, Math.min(12, Math.floor(84 / Math.max(rows.length, columns.length))));
  const ratio = Math.min(1, 84 / Math.max(rows.length, columns.length));
  const maps = [];
  found.layers.forEach((layer, i) => {
    found.heads.forEach((head, k) => {
      const canvas = h("canvas", { width: columns.length * cell, height: rows.length * cell });
      if (ratio < 1) canvas.style.width = `${columns.length * ratio}px`;
      paint(canvas.getContext("2d"), 0, 0, cell, bitmap(rows.length, columns.length, (row, column) => w.at(i, k, row, column)));
      const isChosen = layer === found.layers[view.layer] && head === state.head;
      maps.push(h("button", {
        type: "button", class: isChosen ? "small-map chosen" : "small-map", "aria-pressed": String(isChosen), "aria-label": t("headName", { layer: layer + 1, head: head + 1 }),
        on: { click: () => update({ layer, head }) },
      }, canvas, h("span", {}, `${layer + 1}.${head + 1}`)));
    });
  });
  const grid = h("div", { class: "grid", vars: { "--heads": found.heads.length, "--across": across(found.heads.length) } }, maps);
  return h("div", { class: "heads" }, h("h3", {}, t("allHeads")), grid);
}

/** What the colours mean: they go with the square root, so that small weights can be seen. */
export function scale() {
  const steps = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1];
  return h("p", { class: "scale small" }, h("span", { class: "label" }, t("scale")), steps.map((p) => h("span", { class: "scale-step", vars: { "--weight": Math.sqrt(p).toFixed(3) } }, `${100 * p} %`)));
}

function legend(found, explained) {
  const names = { source: t("sourceTokens"), target: t("targetTokens"), decoder_inputs: t("readTokens") };
  const parts = [
    t("rowsAre", { rows: names[found.rows] ?? found.rows, columns: names[found.columns] ?? found.columns }),
    t("attentionCost", { precision: explained.attention_precision, ms: Math.round(explained.timing.attention_ms) }),
  ];
  return h("div", {}, scale(), h("p", { class: "faint small" }, parts.join(" · ")));
}
