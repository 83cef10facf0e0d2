// Embeddings: what is added for positions, the nearest tokens of each token, and the target vocabulary in a plane.

import { css, field, fill, h, number, select, svg } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { array, look, strip } from "./inside.js";
import { state, update } from "./state.js";
import { nameOf } from "./text.js";

const ROWS = 48; // positions in the map
const CURVES = 4;
const BOX = { width: 520, height: 360 };
const COLOURS = ["--accent", "--map-other", "--good", "--doubt-ink"];

export async function embeddings(panel, signal) {
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const explained = await look({ include: ["structure", "positions", "neighbours", "plane"], encoding: "json" }, signal);
  const sides = explained.included.filter((each) => each.name === "position_table").map((each) => each.of);
  const side = sides.includes(state.side) ? state.side : sides[0];
  fill(
    panel, h("h3", {}, t("nearest")), nearest(explained), h("h3", {}, t("plane")), plane(explained),
    h("p", { class: "faint small" }, t("planeNote", { share: Math.round(100 * explained.plane.share), n: explained.plane.points.length })),
    h("h3", {}, t("positions")), side ? positions(array(explained, "position_table", side), sides, side) : h("p", { class: "faint" }, t("noPositionsNote")),
  );
  return null;
}

/** For each token of both texts, those with the smallest angle to it. */
function nearest(explained) {
  const table = ({ side, tokens }) => h("div", {}, h("h4", {}, t(`${side}Tokens`)), h("table", { class: "plain" }, h("tbody", {}, inOrder(explained[side].tokens, tokens).map((token) => h("tr", {},
    h("th", { scope: "row" }, h("bdi", {}, nameOf(token))),
    h("td", {}, token.nearest.slice(0, 5).map((other) => h("span", { class: "near", vars: { "--weight": Math.max(0, other.cosine).toFixed(3) } }, h("bdi", {}, nameOf(other)), h("small", {}, ` ${number(other.cosine)}`)))))))));
  return h("div", { class: "split nearest" }, explained.neighbours.map(table));
}

/** As they come in the text. */
function inOrder(text, tokens) {
  const places = text.map((token) => token.id);
  return [...tokens].sort((a, b) => places.indexOf(a.id) - places.indexOf(b.id));
}

/** Tokens as points with their names; those of this output are marked. */
function plane(explained) {
  const { points } = explained.plane;
  const used = new Set(explained.target.tokens.map((token) => token.id));
  const span = (key) => { const all = points.map((point) => point[key]); return [Math.min(...all), Math.max(...all)]; };
  const [[left, right], [low, high]] = [span("x"), span("y")];
  const place = ({ x, y }) => [20 + ((x - left) / (right - left || 1)) * (BOX.width - 70), 16 + ((high - y) / (high - low || 1)) * (BOX.height - 32)];
  const isNamed = (point) => points.length <= 150 || used.has(point.id);
  const marks = points.map((point) => {
    const [x, y] = place(point);
    const isUsed = used.has(point.id);
    return svg("g", { class: isUsed ? "point used" : "point" }, svg("circle", { cx: x, cy: y, r: isUsed ? 4 : 2 }), isNamed(point) ? svg("text", { x: x + 5, y: y + 4 }, nameOf(point)) : null, svg("title", {}, nameOf(point)));
  });
  return h("div", { class: "scroll" }, svg("svg", { class: "plane", width: BOX.width, height: BOX.height, viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", "aria-label": t("planeLabel") }, marks));
}

function positions(table, sides, side) {
  const count = Math.min(ROWS, table.shape[0]);
  const rows = Array.from({ length: count }, (_, i) => Array.from(table.row(i)));
  const width = rows[0].length;
  const column = Math.min(state.column, width - 1);
  const isSine = isSinusoidal(rows);
  const controls = h("div", { class: "options" },
    sides.length > 1 ? field(t("positionsOf"), select(sides.map((each) => [each, t(`${each}Tokens`)]), side, (value) => update({ side: value }))) : null,
    field(t("firstColumn"), h("input", { type: "number", min: 0, max: width - 1, step: 1, value: column, on: { change: (event) => update({ column: Math.max(0, Math.min(width - 1, Number(event.target.value) || 0)) }) } })),
    field(t("offset"), h("input", { type: "number", min: 1, max: count - 1, step: 1, value: state.offset, on: { change: (event) => update({ offset: Math.max(1, Math.min(count - 1, Number(event.target.value) || 1)) }) } })));
  return [
    h("p", { class: "faint small" }, t(isSine ? "positionsSine" : "positionsLearned")), controls,
    h("div", { class: "scroll" }, strip(rows, { cell: Math.max(1, Math.min(4, Math.floor(1000 / width))), height: 4, label: t("positions") })),
    h("p", { class: "faint small" }, t("mapAxes")), h("div", { class: "split" }, curves(rows, column), rotation(rows, column - (column % 2), isSine)),
  ];
}

/** Whether it is the paper's table. */
function isSinusoidal(rows) {
  const width = rows[0].length;
  return rows.every((row, position) => [0, 1, width - 2, width - 1].every((i) => {
    const angle = position / 10000 ** ((i - (i % 2)) / width);
    return Math.abs(row[i] - (i % 2 ? Math.cos(angle) : Math.sin(angle))) < 1e-3;
  }));
}

/** Some columns as curves over the positions. */
function curves(rows, first) {
  const columns = Array.from({ length: CURVES }, (_, i) => Math.min(first + i, rows[0].length - 1));
  const [width, height] = [420, 150];
  const most = Math.max(...columns.map((column) => Math.max(...rows.map((row) => Math.abs(row[column])))), 1e-9);
  const lines = columns.map((column, i) => {
    const points = rows.map((row, x) => `${(x * width) / Math.max(1, rows.length - 1)},${height / 2 - (row[column] / most) * (height / 2 - 6)}`).join(" ");
    const line = svg("polyline", { class: "curve", points });
    line.style.stroke = css(COLOURS[i]);
    return line;
  });
  const legend = columns.map((column, i) => { const key = h("span", { class: "key line" }, t("columnName", { n: column })); key.style.setProperty("--key", css(COLOURS[i])); return key; });
  return h("div", {}, svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("curvesLabel") }, lines), h("p", { class: "legend small" }, legend));
}

/** A pair of columns as a point: an offset turns it by the same angle wherever it begins. */
function rotation(rows, pair, isSine) {
  const size = 150;
  const most = Math.max(...rows.map((row) => Math.hypot(row[pair], row[pair + 1])), 1e-9);
  const point = (row) => [size / 2 + (row[pair + 1] / most) * (size / 2 - 12), size / 2 - (row[pair] / most) * (size / 2 - 12)];
  const starts = [0, Math.min(5, rows.length - 1 - state.offset)].filter((start, i, all) => start >= 0 && all.indexOf(start) === i);
  const arms = starts.flatMap((start, i) => [start, start + state.offset].filter((at) => at < rows.length).map((at) => {
    const [x, y] = point(rows[at]);
    const group = svg("g", {}, svg("line", { x1: size / 2, y1: size / 2, x2: x, y2: y }), svg("circle", { cx: x, cy: y, r: 3 }), svg("text", { x: x + 4, y: y - 4 }, String(at)));
    group.style.setProperty("--key", css(COLOURS[i]));
    return group;
  }));
  const angle = state.offset / 10000 ** (pair / rows[0].length);
  const words = isSine ? t("rotationNote", { pair: `${pair}, ${pair + 1}`, offset: state.offset, angle: number(angle), degrees: Math.round((angle * 180) / Math.PI) }) : t("rotationLearned");
  return h("div", { class: "turn" }, svg("svg", { class: "rotation", width: size, height: size, viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": words }, svg("circle", { class: "orbit", cx: size / 2, cy: size / 2, r: size / 2 - 12 }), arms), h("p", { class: "faint small" }, words));
}
