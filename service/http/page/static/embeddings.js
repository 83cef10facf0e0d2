// Embeddings: what is added for positions, the nearest tokens of each token, and the target vocabulary in a plane.

import { fill, h, number, svg } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { look } from "./inside.js";
import { positions, POSITIONS } from "./positions.js";
import { nameOf } from "./text.js";

const BOX = { width: 520, height: 360 };

export async function embeddings(panel, signal) {
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const explained = await look({ include: [...POSITIONS, "neighbours", "plane"], encoding: "json" }, signal);
  fill(
    panel, h("h3", {}, t("nearest")), nearest(explained), h("h3", {}, t("plane")), plane(explained),
    h("p", { class: "faint small" }, t("planeNote", { share: Math.round(100 * explained.plane.share), n: explained.plane.points.length })),
    h("h3", {}, t("positions")), positions(explained, true),
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
