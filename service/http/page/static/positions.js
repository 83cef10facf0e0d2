// How the model knows positions: a table that is added to embeddings, or a bias of scores by distance.

import { css, field, h, number, select, svg } from "./dom.js";
import { t } from "./i18n.js";
import { array, colours, strip } from "./inside.js";
import { state, update } from "./state.js";

const ROWS = 48; // positions in the map
const CURVES = 4;
const MOST_HEADS = 16; // curves of a bias
const COLOURS = ["--accent", "--map-other", "--good", "--doubt-ink"];
const CURVE_BOX = { width: 440, height: 170, left: 34, bottom: 20 };
const BOX = { width: 560, height: 200, left: 44, bottom: 24 };

/** What is included for them. */
export const POSITIONS = ["structure", "positions", "bias"];

/** The model's own positions; what can be chosen is left out where they are a picture among others. */
export function positions(explained, isWhole) {
  const kind = explained.structure?.positions;
  if (kind === "relative") return relative(explained, isWhole);
  const sides = explained.included.filter((each) => each.name === "position_table").map((each) => each.of);
  if (!sides.length) return h("p", { class: "faint" }, t("noPositionsNote"));
  const side = sides.includes(state.side) ? state.side : sides[0];
  return added(array(explained, "position_table", side), sides, side, kind === "sinusoidal", isWhole);
}

/** The table that is added: as a map, some columns as curves, and the rotation by an offset. */
function added(table, sides, side, isTurning, isWhole) {
  const count = Math.min(ROWS, table.shape[0]);
  const rows = Array.from({ length: count }, (_, i) => Array.from(table.row(i)));
  const width = rows[0].length;
  const column = Math.max(0, Math.min(state.column, width - CURVES));
  const isSine = isTurning && isPapers(rows);
  const picture = [
    h("p", { class: "faint small" }, t(isSine ? "positionsSine" : isTurning ? "positionsTurning" : "positionsLearned")),
    h("div", { class: "scroll" }, strip(rows, { cell: Math.max(1, Math.min(4, Math.floor(1000 / width))), height: 4, label: t("positions") })),
    h("p", { class: "faint small" }, t("mapAxes")), colours(false),
  ];
  if (!isWhole) return picture;
  const controls = h("div", { class: "options" }, sideChoice(sides, side),
    field(t("firstColumn"), h("input", { type: "number", min: 0, max: width - 1, step: 1, value: column, on: { change: (event) => update({ column: Math.max(0, Math.min(width - 1, Number(event.target.value) || 0)) }) } })),
    field(t("offset"), h("input", { type: "number", min: 1, max: count - 1, step: 1, value: state.offset, on: { change: (event) => update({ offset: Math.max(1, Math.min(count - 1, Number(event.target.value) || 1)) }) } })));
  return [controls, picture, h("div", { class: "split" }, curves(rows, column), isTurning && !isSine ? null : rotation(rows, column - (column % 2), isSine))];
}

const sideChoice = (sides, side) => (sides.length > 1 ? field(t("positionsOf"), select(sides.map((each) => [each, t(`${each}Tokens`)]), side, (value) => update({ side: value }))) : null);

/** Whether it is the paper's table, sines and cosines in turn. */
function isPapers(rows) {
  const width = rows[0].length;
  return rows.every((row, position) => [0, 1, width - 2, width - 1].every((i) => {
    const angle = position / 10000 ** ((i - (i % 2)) / width);
    return Math.abs(row[i] - (i % 2 ? Math.cos(angle) : Math.sin(angle))) < 1e-3;
  }));
}

const coloured = (element, name) => { element.style.setProperty("--key", css(name)); return element; };

/** Some columns as curves over the positions. */
function curves(rows, first) {
  const columns = Array.from({ length: Math.min(CURVES, rows[0].length) }, (_, i) => first + i);
  const { width, height, left, bottom } = CURVE_BOX;
  const most = Math.max(...columns.map((column) => Math.max(...rows.map((row) => Math.abs(row[column])))), 1e-9);
  const x = (at) => left + (at / Math.max(1, rows.length - 1)) * (width - left - 8);
  const y = (value) => (height - bottom) / 2 - (value / most) * ((height - bottom) / 2 - 8);
  const ends = [0, rows.length - 1].map((at) => svg("text", { x: x(at), y: height - 4, "text-anchor": at ? "end" : "start" }, String(at)));
  const axes = [svg("line", { class: "axis", x1: left, y1: y(0), x2: width - 8, y2: y(0) }), ends, svg("text", { x: x(rows.length / 2), y: height - 4, "text-anchor": "middle" }, t("positionAxis")),
    [most, 0, -most].map((value) => svg("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, number(value, 1)))];
  const lines = columns.map((column, i) => {
    const points = rows.map((row, at) => `${x(at)},${y(row[column])}`).join(" ");
    return coloured(svg("polyline", { class: "curve", points }), COLOURS[i]);
  });
  const legend = columns.map((column, i) => coloured(h("span", { class: "key line" }, t("columnName", { n: column })), COLOURS[i]));
  return h("div", {}, svg("svg", { class: "axes", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("curvesLabel") }, axes, lines), h("p", { class: "legend small" }, legend));
}

/** A pair of columns as a point: an offset turns it by the same angle wherever it begins. */
function rotation(rows, pair, isSine) {
  const size = 150;
  const most = Math.max(...rows.map((row) => Math.hypot(row[pair], row[pair + 1])), 1e-9);
  const point = (row) => [size / 2 + (row[pair + 1] / most) * (size / 2 - 12), size / 2 - (row[pair] / most) * (size / 2 - 12)];
  const starts = [0, Math.min(5, rows.length - 1 - state.offset)].filter((start, i, all) => start >= 0 && all.indexOf(start) === i);
  const arms = starts.flatMap((start, i) => [start, start + state.offset].filter((at) => at < rows.length).map((at) => {
    const [x, y] = point(rows[at]);
    return coloured(svg("g", {}, svg("line", { x1: size / 2, y1: size / 2, x2: x, y2: y }), svg("circle", { cx: x, cy: y, r: 3 }), svg("text", { x: x + 0.13 * (x - size / 2), y: y + 0.13 * (y - size / 2) + 4, "text-anchor": "middle" }, String(at))), COLOURS[i]);
  }));
  const angle = state.offset / 10000 ** (pair / rows[0].length);
  const words = isSine ? t("rotationNote", { pair: `${pair}, ${pair + 1}`, offset: state.offset, angle: number(angle), degrees: Math.round((angle * 180) / Math.PI) }) : t("rotationLearned");
  return h("div", { class: "turn" }, svg("svg", { class: "rotation", width: size, height: size, viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": words }, svg("circle", { class: "orbit", cx: size / 2, cy: size / 2, r: size / 2 - 12 }), arms), h("p", { class: "faint small" }, words));
}

/** The bias of a score by the distance of its key, a curve for each head. */
function relative(explained, isWhole) {
  const sides = ["source", "target"];
  const side = sides.includes(state.side) ? state.side : sides[0];
  const found = array(explained, "bias", side === "source" ? "encoder" : "decoder");
  const distances = found.places.map(Number);
  const heads = Array.from({ length: Math.min(MOST_HEADS, found.shape[0]) }, (_, head) => Array.from(found.row(head)));
  return [
    h("p", { class: "faint small" }, t("positionsRelative", { n: -distances[0] })),
    isWhole ? h("div", { class: "options" }, sideChoice(sides, side)) : null,
    h("div", { class: "scroll" }, biases(heads, distances)),
    h("p", { class: "legend small" }, heads.map((_, head) => coloured(h("span", { class: "key line" }, t("headOf", { n: head + 1 })), COLOURS[head % COLOURS.length]))),
    found.shape[0] > heads.length ? h("p", { class: "faint small" }, t("headsShown", { n: heads.length, all: found.shape[0] })) : null,
  ];
}

function biases(heads, distances) {
  const { width, height, left, bottom } = BOX;
  const all = [0, ...heads.flat()];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (i) => left + 6 + (i / Math.max(1, distances.length - 1)) * (width - left - 24);
  const y = (value) => 10 + ((high - value) / (high - low || 1)) * (height - bottom - 16);
  const lines = heads.map((row, head) => {
    const line = coloured(svg("polyline", { class: "curve bias-curve", points: row.map((value, i) => `${x(i)},${y(value)}`).join(" ") }, svg("title", {}, t("headOf", { n: head + 1 }))), COLOURS[head % COLOURS.length]);
    const dash = Math.floor(head / COLOURS.length);
    if (dash) line.setAttribute("stroke-dasharray", `${8 / dash} ${3 * dash}`);
    return line;
  });
  const zero = distances.indexOf(0);
  const across = [0, zero, distances.length - 1].filter((at, i, each) => each.indexOf(at) === i);
  return svg("svg", { class: "axes biases", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("biasLabel") },
    svg("line", { class: "axis", x1: left, y1: y(0), x2: width - 12, y2: y(0) }), svg("line", { class: "axis", x1: x(zero), y1: 6, x2: x(zero), y2: height - bottom }),
    [high, 0, low].filter((value, i, each) => each.indexOf(value) === i && (value === 0 || Math.abs(y(value) - y(0)) > 14)).map((value) => svg("text", { x: left - 4, y: y(value) + 4, "text-anchor": "end" }, number(value, 1))),
    across.map((at) => svg("text", { x: x(at), y: height - 6, "text-anchor": "middle" }, String(distances[at]).replace("-", "−"))), lines);
}
