// Inside one head: query, keys, their products, the softmax, and the weighted sum of the values, with the numbers.

import { field, fill, h, number, percent, select } from "./dom.js";
import { KINDS } from "./attention.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { array, largest, look, sizes, strip, weightsOf } from "./inside.js";
import { state, update } from "./state.js";
import { nameOf } from "./text.js";

const MOST_ROWS = 24; // keys with their vectors; a longer text has the most probable ones
const MOST_MATRIX = 16; // tokens of a matrix with numbers
const PRINTED = 3; // products of a sum that are written out

export async function head(panel, signal) {
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const { kind } = state;
  const layers = sizes()[kind === "encoder" ? "encoder_layers" : "decoder_layers"];
  const layer = Math.min(state.layer, layers - 1);
  const chosen = Math.max(0, Math.min(state.head, sizes().heads - 1));
  const explained = await look({ attention: [kind], layers: [layer], heads: [chosen], include: ["structure", "qkv", "scores", "sums"], encoding: "json" }, signal);
  const found = parts(explained, kind);
  const step = Math.max(0, Math.min((state.step ?? 1) - 1, found.rows.length - 1));
  const controls = h(
    "div", { class: "options" },
    field(t("kind"), select(KINDS.map((each) => [each, t(each)]), kind, (each) => update({ kind: each }))),
    field(t("layer"), select(range(layers), String(layer), (value) => update({ layer: Number(value) }))),
    field(t("head"), select(range(sizes().heads), String(chosen), (value) => update({ head: Number(value) }))),
    field(t(kind === "encoder" ? "sourceTokens" : "stepToken"), select(found.rows.map((token, i) => [String(i), `${i + 1}: ${nameOf(token)}`]), String(step), (value) => update({ step: Number(value) + 1 }))),
  );
  fill(panel, controls, formula(explained), oneRow(found, step, explained.structure?.score ?? "dot"), matrices(found, step));
  return null;
}

const range = (count) => Array.from({ length: count }, (_, i) => [String(i), String(i + 1)]);

/** The head's arrays for its rows (who looks) and columns (what is looked at). */
function parts(explained, kind) {
  const of = (name) => array(explained, name, kind);
  const weights = weightsOf(explained, kind);
  const rows = weights.rows === "source" ? explained.source.tokens : explained.target.tokens;
  const columns = weights.columns === "source" ? explained.source.tokens : explained.decoder_inputs;
  const [query, key, value, scores, sums] = ["query", "key", "value", "scores", "sums"].map(of);
  return {
    kind, rows, columns,
    query: (row) => Array.from(query.row(0, 0, row)), key: (column) => Array.from(key.row(0, 0, column)), value: (column) => Array.from(value.row(0, 0, column)),
    score: (row) => Array.from(scores.row(0, 0, row)), sum: (row) => Array.from(sums.row(0, 0, row)), weight: (row) => Array.from(weights.row(0, 0, row)),
    isSeen: (row, column) => kind !== "decoder" || column <= row + columns.length - rows.length,
  };
}

function formula(explained) {
  const score = explained.structure?.score ?? "dot";
  return h("p", { class: "formula" }, t(`formula_${score}`));
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

/** The steps for one row: query, then each key with its product, score, weight and value, then the sum. */
function oneRow(found, row, score) {
  const query = found.query(row);
  const [scores, weights, sum] = [found.score(row), found.weight(row), found.sum(row)];
  const cell = Math.max(2, Math.min(6, Math.floor(190 / query.length)));
  const shown = found.columns.map((_, i) => i).sort((a, b) => weights[b] - weights[a]).slice(0, MOST_ROWS).sort((a, b) => a - b);
  const most = { q: largest(query), k: Math.max(...shown.map((i) => largest(found.key(i)))), v: Math.max(...shown.map((i) => largest(found.value(i)))) };
  const vector = (values, top) => strip([values], { cell, height: 14, most: top });
  const isDot = score === "dot";
  const head = ["keyOf", "key", ...(isDot ? ["product"] : []), "score", "weight", "value"];
  const rows = shown.map((i) => {
    const key = found.key(i);
    const isSeen = found.isSeen(row, i);
    return h("tr", { class: isSeen ? "" : "masked" },
      h("th", { scope: "row" }, h("bdi", {}, nameOf(found.columns[i]))), h("td", {}, vector(key, most.k)),
      isDot ? h("td", { class: "num", title: writtenOut(query, key) }, number(dot(query, key))) : null,
      h("td", { class: "num" }, isSeen ? number(scores[i]) : `${number(scores[i])} → −∞`),
      h("td", {}, h("span", { class: "weight-bar", vars: { "--share": weights[i].toFixed(4) } }, percent(weights[i]))),
      h("td", {}, vector(found.value(i), most.v)));
  });
  const best = weights.indexOf(Math.max(...weights));
  const example = isDot ? h("p", { class: "detail" }, t("productOf", {
    query: nameOf(found.rows[row]), key: nameOf(found.columns[best]), sum: writtenOut(query, found.key(best)),
    product: number(dot(query, found.key(best))), d: query.length, score: number(scores[best]), p: percent(weights[best]),
  })) : null;
  return [
    h("h3", {}, t("queryOf", { token: nameOf(found.rows[row]) })), vector(query, most.q),
    h("div", { class: "scroll" }, h("table", { class: "plain head-table" },
      h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, t(`col_${name}`))))),
      h("tbody", {}, rows),
      h("tfoot", {}, h("tr", {}, h("th", { scope: "row", colSpan: head.length - 1 }, t("sumOfValues")), h("td", {}, vector(sum, Math.max(most.v, largest(sum)))))))),
    example, h("p", { class: "faint small" }, t("sumNote", { heads: sizes().heads })),
    found.columns.length > shown.length ? h("p", { class: "faint small" }, t("mostLooked", { n: shown.length })) : null,
  ];
}

/** q·k as a sum, its largest products first. */
function writtenOut(query, key) {
  const products = query.map((x, i) => [x, key[i]]).sort((a, b) => Math.abs(b[0] * b[1]) - Math.abs(a[0] * a[1]));
  return `${products.slice(0, PRINTED).map(([x, y]) => `${number(x)}·${number(y)}`).join(" + ")} + …`;
}

/** Scores and weights of all rows as matrices of numbers; a click on a row shows that one. */
function matrices(found, row) {
  if (found.rows.length > MOST_MATRIX || found.columns.length > MOST_MATRIX) return h("p", { class: "faint small" }, t("matrixTooLarge", { n: MOST_MATRIX }));
  const table = (name, of, write, isWeight) => h("div", {}, h("h3", {}, t(name)), h("div", { class: "scroll" }, h("table", { class: "matrix" },
    h("thead", {}, h("tr", {}, h("td", {}), found.columns.map((token) => h("th", { scope: "col" }, h("bdi", {}, nameOf(token)))))),
    h("tbody", {}, found.rows.map((token, i) => {
      const values = of(i);
      const most = largest(values);
      return h("tr", { class: i === row ? "chosen" : "" },
        h("th", { scope: "row" }, h("button", { type: "button", class: "crumb", "aria-pressed": String(i === row), on: { click: () => update({ step: i + 1 }) } }, h("bdi", {}, nameOf(token)))),
        values.map((value, j) => (found.isSeen(i, j)
          ? h("td", { vars: { "--weight": (isWeight ? Math.sqrt(value) : Math.max(0, value / most)).toFixed(3) } }, write(value))
          : h("td", { class: "masked" }, isWeight ? "0" : "−∞"))));
    })))));
  return h("div", { class: "split" }, table("scoresTable", found.score, (x) => number(x, 1), false), table("weightsTable", found.weight, (x) => number(x), true));
}
