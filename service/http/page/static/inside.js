// Values from within the model: what is asked of an explanation for them, and how they are drawn.

import { css, h } from "./dom.js";
import { explain, session } from "./generate.js";

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

/** Little-endian float16 in base64. */
export function halves(text) {
  const raw = atob(text);
  const found = new Float32Array(raw.length / 2);
  for (let i = 0; i < found.length; i++) {
    const bits = raw.charCodeAt(2 * i) | (raw.charCodeAt(2 * i + 1) << 8);
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    found[i] = bits & 0x8000 ? -size : size;
  }
  return found;
}

export const largest = (values) => values.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-9);

/** Numbers as cells: below 0 in one colour, above in another; `most` has the full colour. */
export function strip(rows, { cell = 6, height = cell, most = 0, label = "" } = {}) {
  const columns = rows[0]?.length ?? 0;
  const top = most || Math.max(...rows.map(largest));
  const canvas = h("canvas", { class: "strip", width: Math.max(1, columns), height: Math.max(1, rows.length), role: "img", "aria-label": label });
  const image = new ImageData(Math.max(1, columns), Math.max(1, rows.length));
  const [below, above] = [css("--map-high"), css("--map-other")].map((colour) => parseInt(colour.slice(1), 16));
  rows.forEach((row, y) => row.forEach((value, x) => {
    const colour = value < 0 ? below : above;
    image.data.set([colour >> 16, (colour >> 8) & 255, colour & 255, 255 * Math.min(1, Math.abs(value) / top)], 4 * (y * columns + x));
  }));
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.style.width = `${columns * cell}px`;
  canvas.style.height = `${rows.length * height}px`;
  return canvas;
}

/** Weights from 0 to 1 as a small map. */
export function smallMap(rows, size = 56) {
  const canvas = strip(rows.map((row) => Array.from(row, (x) => -Math.sqrt(Math.max(0, x)))), { most: 1 });
  const cell = Math.max(1, Math.min(10, size / Math.max(rows.length, rows[0]?.length ?? 1)));
  canvas.style.width = `${cell * (rows[0]?.length ?? 1)}px`;
  canvas.style.height = `${cell * rows.length}px`;
  return canvas;
}

/** How many values an answer may have. */
export const mostValues = () => session.info?.limits.max_explain_values ?? 1e6;

export const sizes = () => session.info?.bundle.sizes ?? { heads: 8, encoder_layers: 6, decoder_layers: 6, d_model: 512, target_vocab: 0 };
