// Values from within the model: what is asked of an explanation for them, and how they are drawn.

import { css, h, number } from "./dom.js";
import { explain, session } from "./generate.js";
import { t } from "./i18n.js";
import { state } from "./state.js";

const OUTLIERS = 0.01; // of the values of a strip, which have the full colour like the largest of the others
const SAMPLED = 1024; // values of which these are told

/** An explanation with what was computed on the way. @returns {Promise<Explained>} */
export const look = (wanted, signal) => explain({ attention: [], encoding: "float16", ...wanted }, signal);

/** An included array; `row(...indices)` has its values at the first indices. */
export function array(explained, name, of) {
  const found = explained.included.find((each) => each.name === name && each.of === of);
  return found ? readable(found) : null;
}

/** The weights of a kind of attention, likewise: row(layer, head, row). */
export const weightsOf = (explained, kind) => readable(explained.attention.find((each) => each.kind === kind));

const read = new WeakMap(); // of an answer's arrays

function readable(found) {
  if (!read.has(found)) {
    const values = typeof found.values === "string" ? halves(found.values) : found.values.flat(Infinity);
    read.set(found, { ...found, values, row: (...indices) => rowOf(values, found.shape, indices) });
  }
  return read.get(found);
}

/** All values whose first indices are these. */
function rowOf(values, shape, indices) {
  const size = shape.slice(indices.length).reduce((a, b) => a * b, 1);
  const start = indices.reduce((at, index, axis) => at * shape[axis] + index, 0) * size;
  return values.slice(start, start + size);
}

let everyHalf = /** @type {Float32Array | null} */ (null);

/** The values of all float16, by their bits. */
function halfTable() {
  if (everyHalf) return everyHalf;
  everyHalf = new Float32Array(65536);
  for (let bits = 0; bits < 32768; bits++) {
    const exponent = bits >> 10;
    const size = exponent ? (1024 + (bits & 1023)) * 2 ** (exponent - 25) : bits * 2 ** -24;
    everyHalf[bits] = size;
    everyHalf[bits | 32768] = -size;
  }
  return everyHalf;
}

/** Little-endian float16 in base64. */
export function halves(text) {
  const raw = atob(text);
  const found = new Float32Array(raw.length / 2);
  const table = halfTable();
  for (let i = 0; i < found.length; i++) found[i] = table[raw.charCodeAt(2 * i) | (raw.charCodeAt(2 * i + 1) << 8)];
  return found;
}

export const largest = (values) => values.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-9);

/** The largest size but for outliers, one of which would leave all others without colour. */
export function usual(values) {
  const every = Math.ceil(values.length / SAMPLED) || 1;
  const sorted = Float32Array.from({ length: Math.ceil(values.length / every) }, (_, i) => Math.abs(values[i * every])).sort();
  return Math.max(1e-9, sorted[Math.floor((1 - OUTLIERS) * (sorted.length - 1))] ?? 0);
}

let colour = /** @type {number[] | null} */ (null);

/** The colours below and above 0 as a canvas has them; asked for once in a drawing. */
function inks() {
  if (!colour) {
    colour = ["--map-high", "--map-other"].map((name) => parseInt(css(name).slice(1), 16)).map((rgb) => (rgb >> 16) | (rgb & 0xff00) | ((rgb & 255) << 16));
    queueMicrotask(() => { colour = null; });
  }
  return colour;
}

/** Numbers as cells: below 0 in one colour, above in another; `most` has the full colour. */
export function strip(rows, { cell = 6, height = cell, most = 0, label = "", tell = /** @type {((row: number, column: number) => string) | null} */ (null) } = {}) {
  const columns = rows[0]?.length ?? 0;
  const top = most || Math.max(...rows.map(largest));
  const [below, above] = inks();
  const canvas = pixels(columns, rows.length, (data) => {
    let at = 0;
    for (const row of rows) for (let x = 0; x < columns; x++) data[at++] = (row[x] < 0 ? below : above) | ((255 * Math.min(1, Math.abs(row[x]) / top)) << 24);
  }, label);
  canvas.style.width = `${columns * cell}px`;
  canvas.style.height = `${rows.length * height}px`;
  if (tell && columns) listen(canvas, rows.length, columns, tell);
  return canvas;
}

/** A canvas of so many pixels, which `write` fills: each is alpha, blue, green, red. */
function pixels(columns, rows, write, label) {
  const canvas = h("canvas", { class: "strip", width: Math.max(1, columns), height: Math.max(1, rows), role: "img", "aria-label": label });
  const image = new ImageData(canvas.width, canvas.height);
  write(new Uint32Array(image.data.buffer));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** What `tell` says of the cell under the pointer, or that the arrow keys have reached, is the strip's title. */
function listen(canvas, rows, columns, tell) {
  let column = 0;
  const say = (x, y) => {
    column = Math.max(0, Math.min(columns - 1, x));
    canvas.title = tell(Math.max(0, Math.min(rows - 1, y)), column);
  };
  canvas.tabIndex = 0;
  canvas.addEventListener("mousemove", (event) => say(Math.floor((event.offsetX / canvas.clientWidth) * columns), Math.floor((event.offsetY / canvas.clientHeight) * rows)));
  canvas.addEventListener("focus", () => say(column, 0));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation(); // up and down go to other strips
    say(column + step, 0);
  });
}

/** Weights from 0 to 1, a row after another, as a small map; rows from `last` on are empty. */
export function smallMap(weights, rows, columns, last, size) {
  const [high] = inks();
  const canvas = pixels(columns, rows, (data) => {
    for (let i = 0; i < columns * Math.min(last, rows); i++) data[i] = high | ((255 * Math.sqrt(Math.max(0, weights[i]))) << 24);
  }, "");
  const cell = Math.max(1, Math.min(10, size / Math.max(rows, columns)));
  canvas.style.width = `${cell * columns}px`;
  canvas.style.height = `${cell * rows}px`;
  return canvas;
}

/** A table of numbers: a name and cells for each row; `tint` from -1 to 1 colours a cell. */
export function numbers(columns, rows, foot = [], name = "") {
  const line = ([token, cells, tints = []]) => h("tr", {}, h("th", { scope: "row" }, h("bdi", {}, token)),
    cells.map((value, i) => h("td", { class: (tints[i] ?? 0) < 0 ? "below" : "above", vars: { "--tint": Math.min(1, Math.abs(tints[i] ?? 0)).toFixed(3) } }, typeof value === "number" ? number(value) : value)));
  return h("div", { class: "scroll" }, h("table", { class: `matrix numbers ${name}` },
    h("thead", {}, h("tr", {}, h("td", {}), columns.map((column) => h("th", { scope: "col" }, column)))),
    h("tbody", {}, rows.map(line)), foot.length ? h("tfoot", {}, foot.map(line)) : null));
}

/** What the colours of strips mean, and those of small maps, which go with the square root. */
export function colours(hasMaps) {
  const ramp = (name, label, ...ticks) => h("span", { class: "labelled-ramp" }, h("span", { class: "label" }, label),
    h("span", { class: "ramp" }, h("span", { class: `ramp-${name}` }), h("span", { class: "ticks" }, ticks.map((tick) => h("span", {}, tick)))));
  return h("div", { class: "colours small" }, ramp("values", t("scaleValues"), "−", "0", "+"), hasMaps ? ramp("weights", t("scaleWeights"), "0", "25 %", "100 %") : null);
}

/** How many values an answer may have. */
export const mostValues = () => session.info?.limits.max_explain_values ?? 1e6;

export const sizes = () => session.info?.bundle.sizes ?? { heads: 8, encoder_layers: 6, decoder_layers: 6, d_model: 512, target_vocab: 0, head_size: 0 };

/** Tokens of the source and of the target, with their end tokens and what may come before. */
export function lengths() {
  const { explained, answer } = session;
  if (explained) return { source: explained.source.tokens.length, target: Math.max(explained.target.tokens.length, explained.decoder_inputs.length) };
  const tokens = state.target ?? answer?.outputs[0].hypotheses[0].tokens ?? [];
  return { source: (answer?.usage.source_tokens ?? 0) + 2, target: tokens.length + 2 };
}
