// A matrix of weights on a canvas, with tokens on both axes.

import { css, h } from "./dom.js";

const LARGEST_CELL = 38;
const SMALLEST_CELL = 7;
const MOST_LABEL = 90; // pixels
const MOST_PIXELS = 2 ** 24; // of a canvas: beyond, Safari on a phone leaves it blank
const FONT = "12px ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, 'Noto Sans Mono CJK SC', monospace";

/** Bytes of base64 as weights: 255 is 1. `at(layer, head, row, column)`, and the mean over heads with head -1. */
export function weights(attention) {
  const bytes = Uint8Array.from(atob(attention.values), (character) => character.charCodeAt(0));
  const [layers, heads, rows, columns] = attention.shape;
  const one = (layer, head, row, column) => bytes[((layer * heads + head) * rows + row) * columns + column] / 255;
  const at = (layer, head, row, column) => {
    if (head >= 0) return one(layer, head, row, column);
    let sum = 0;
    for (let i = 0; i < heads; i++) sum += one(layer, i, row, column);
    return sum / heads;
  };
  return { layers, heads, rows, columns, at };
}

const shorten = (context, text, width) => {
  if (context.measureText(text).width <= width) return text;
  const characters = Array.from(text);
  while (characters.length > 1 && context.measureText(`${characters.join("")}…`).width > width) characters.pop();
  return `${characters.join("")}…`;
};

/** Where cells are: `cell` pixels each, after labels of `left` and `top` pixels. */
export function layout(rowNames, columnNames, width) {
  const context = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  context.font = FONT;
  const widest = (names) => Math.min(MOST_LABEL, Math.max(8, ...names.map((name) => context.measureText(name).width)));
  const left = Math.ceil(widest(rowNames)) + 10;
  const fits = Math.floor((width - left - 2) / columnNames.length);
  const cell = Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, fits));
  const isTurned = columnNames.some((name) => context.measureText(name).width > cell - 4);
  const top = isTurned ? Math.ceil(widest(columnNames)) + 10 : 20;
  return { left, top, cell, isTurned, width: left + cell * columnNames.length + 1, height: top + cell * rowNames.length + 1 };
}

/** Pixels of a canvas for each of the page: `most`, or as many as it can have. */
export const ratioWithin = (width, height, most) => Math.min(most, Math.sqrt(MOST_PIXELS / (width * height)));

/** Draw a bitmap of weights with the labels; `lit` is {row, column}, either of which may be null. */
export function draw(canvas, place, rowNames, columnNames, cells, lit) {
  const { left, top, cell, width, height } = place;
  const ratio = ratioWithin(width, height, Math.min(window.devicePixelRatio || 1, 2));
  const [across, down] = [Math.floor(width * ratio), Math.floor(height * ratio)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  paint(context, left, top, cell, cells);
  labels(context, place, rowNames, columnNames, lit);
  context.strokeStyle = css("--accent");
  context.lineWidth = 2;
  if (lit.row !== null) context.strokeRect(left, top + lit.row * cell, cell * columnNames.length, cell);
  if (lit.column !== null) context.strokeRect(left + lit.column * cell, top, cell, cell * rowNames.length);
}

/** A canvas with a pixel for each value(row, column), drawn once and scaled often. */
export function bitmap(rows, columns, value) {
  const canvas = h("canvas", { width: columns, height: rows });
  const image = new ImageData(columns, rows);
  const colour = parseInt(css("--map-high").slice(1), 16);
  for (let row = 0, i = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, i += 4) {
      const alpha = 255 * Math.sqrt(Math.max(0, value(row, column))); // small weights would not be seen otherwise
      image.data.set([colour >> 16, (colour >> 8) & 255, colour & 255, alpha], i);
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Cells alone, as in the small maps of all heads. */
export function paint(context, left, top, cell, cells) {
  const [width, height] = [cells.width * cell, cells.height * cell];
  context.fillStyle = css("--map-low");
  context.fillRect(left, top, width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(cells, left, top, width, height);
  if (cell < 10) return;
  context.fillStyle = css("--card");
  for (let x = 1; x < cells.width; x++) context.fillRect(left + x * cell - 0.5, top, 1, height);
  for (let y = 1; y < cells.height; y++) context.fillRect(left, top + y * cell - 0.5, width, 1);
}

function labels(context, { left, top, cell, isTurned }, rowNames, columnNames, lit) {
  context.font = FONT;
  context.textBaseline = "middle";
  const [ink, accent] = [css("--ink"), css("--accent")];
  const every = Math.max(1, Math.ceil(13 / cell)); // labels that would overlap are left out
  const isShown = (i, at) => i === at || (i % every === 0 && (at === null || Math.abs(i - at) >= every));
  rowNames.forEach((name, row) => {
    if (!isShown(row, lit.row)) return;
    context.fillStyle = row === lit.row ? accent : ink;
    context.textAlign = "right";
    context.fillText(shorten(context, name, MOST_LABEL), left - 6, top + (row + 0.5) * cell);
  });
  columnNames.forEach((name, column) => {
    if (!isShown(column, lit.column)) return;
    context.fillStyle = column === lit.column ? accent : ink;
    const x = left + (column + 0.5) * cell;
    context.save();
    context.translate(x, top - 6);
    const turns = isTurned && context.measureText(name).width > cell - 4;
    if (turns) context.rotate(-Math.PI / 2);
    context.textAlign = turns ? "left" : "center";
    if (!turns) context.textBaseline = "alphabetic";
    context.fillText(shorten(context, name, MOST_LABEL), 0, 0);
    context.restore();
  });
}
