// Embeddings: what is added for positions, the nearest tokens of each token, and the target vocabulary in a plane.

import { fill, h, number, svg } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { look } from "./inside.js";
import { positions, POSITIONS } from "./positions.js";
import { nameOf } from "./text.js";

const LETTER = { small: 6.1, large: 7.9 }; // pixels across, of 10 and of 13 px
const LINE = 13; // pixels of a name's height

export async function embeddings(panel, signal) {
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const explained = await look({ include: [...POSITIONS, "neighbours", "plane"], encoding: "json" }, signal);
  fill(
    panel, h("h3", {}, t("nearest")), nearest(explained), h("h3", {}, t("plane")), plane(explained, panel.clientWidth),
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

/** Tokens as points with their names; those of this output are marked. A name that would cover another is left to the pointer. */
function plane(explained, room) {
  const { points } = explained.plane;
  const width = Math.max(300, Math.min(900, room || 520));
  const height = Math.min(520, Math.max(320, 0.6 * width));
  const used = new Set(explained.target.tokens.map((token) => token.id));
  const span = (key) => { const all = points.map((point) => point[key]); return [Math.min(...all), Math.max(...all)]; };
  const [[left, right], [low, high]] = [span("x"), span("y")];
  const place = ({ x, y }) => [24 + ((x - left) / (right - left || 1)) * (width - 64), 18 + ((high - y) / (high - low || 1)) * (height - 36)];
  const fits = roomFor(width, height);
  const marks = [...points].sort((a, b) => Number(used.has(b.id)) - Number(used.has(a.id))).map((point) => {
    const [x, y] = place(point);
    const isUsed = used.has(point.id);
    const at = fits(x, y, Array.from(nameOf(point)).length * (isUsed ? LETTER.large : LETTER.small), isUsed);
    return svg("g", { class: isUsed ? "point used" : "point" }, svg("circle", { cx: x, cy: y, r: isUsed ? 4 : 2 }),
      at ? svg("text", { x: at.x, y: at.y + 4, "text-anchor": at.anchor }, nameOf(point)) : null, svg("title", {}, nameOf(point)));
  });
  return h("div", { class: "scroll" }, svg("svg", { class: "plane", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("planeLabel") }, marks.reverse()));
}

/** Where a name of so many pixels can stand beside its point, right, left, above or below; null where all is taken. */
function roomFor(width, height) {
  const taken = [];
  return (x, y, wide, isNeeded) => {
    const choices = [
      { at: x + 6, middle: y, anchor: "start", start: x + 6 }, { at: x - 6, middle: y, anchor: "end", start: x - 6 - wide },
      { at: x, middle: y - 11, anchor: "middle", start: x - wide / 2 }, { at: x, middle: y + 11, anchor: "middle", start: x - wide / 2 },
    ];
    const isFree = ({ middle, start }) => start > 0 && start + wide < width && middle > LINE / 2 && middle < height - LINE / 2
      && taken.every((box) => start + wide < box.start || box.end < start || Math.abs(middle - box.middle) > LINE - 2);
    const found = choices.find(isFree) ?? (isNeeded ? choices[0] : null);
    taken.push({ start: x - 3, end: x + 3, middle: y });
    if (!found) return null;
    const { at, middle, anchor, start } = found;
    taken.push({ start, end: start + wide, middle });
    return { x: at, y: middle, anchor };
  };
}
