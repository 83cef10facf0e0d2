// Inside one head: query, keys, their scores, the softmax, the weighted sum of the values and its projection.

import { field, fill, h, number, percent, rove, select } from "./dom.js";
import { KINDS } from "./attention.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { array, colours, largest, lengths, look, mostValues, numbers, sizes, strip, usual, weightsOf } from "./inside.js";
import { scoring } from "./scores.js";
import { state, update } from "./state.js";
import { nameOf } from "./text.js";

const MOST_ROWS = 24; // keys with their vectors; a longer text has the most probable ones
const MOST_MATRIX = 16; // tokens of a matrix with numbers
const FEATURES = 8; // of a matrix with numbers
const FEW = 4; // of them on a phone
const NARROW = 560; // pixels of a window
const MOST_WRITTEN = 100_000; // values that are asked for as decimals

export async function head(panel, signal) {
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const { kind } = state;
  const layers = sizes()[kind === "encoder" ? "encoder_layers" : "decoder_layers"];
  const layer = Math.min(state.layer, layers - 1);
  const chosen = Math.max(0, Math.min(state.head, sizes().heads - 1));
  const include = included(kind);
  if (!include) return fill(panel, h("p", { class: "faint" }, t("tooLongForHead", { n: mostValues().toLocaleString("en") })));
  const explained = await look({ attention: [kind], layers: [layer], heads: [chosen], ...include }, signal);
  const found = parts(explained, kind, chosen);
  const step = Math.max(0, Math.min((state.step ?? 1) - 1, found.rows.length - 1));
  const controls = h(
    "div", { class: "options" },
    field(t("kind"), select(KINDS.map((each) => [each, t(each)]), kind, (each) => update({ kind: each }))),
    field(t("layer"), select(range(layers), String(layer), (value) => update({ layer: Number(value) }))),
    field(t("head"), select(range(sizes().heads), String(chosen), (value) => update({ head: Number(value) }))),
    field(t(kind === "encoder" ? "sourceTokens" : "stepToken"), select(found.rows.map((token, i) => [String(i), `${i + 1}: ${nameOf(token)}`]), String(step), (value) => update({ step: Number(value) + 1 }))),
  );
  fill(panel, controls, h("p", { class: "formula" }, found.scores.formula), colours(false), oneRow(found, step), matrices(found, step));
  return null;
}

const range = (count) => Array.from({ length: count }, (_, i) => [String(i), String(i + 1)]);

/** What is asked for, as far as an answer may have as many values; null: too much. */
function included(kind) {
  const { source, target } = lengths();
  const [rows, columns] = { encoder: [source, source], decoder: [target, target], cross: [target, source] }[kind];
  const { heads, d_model, head_size } = sizes();
  const d = head_size || d_model / heads;
  const values = (2 * rows + 2 * columns + 1) * d + 2 * rows * columns + 400 * heads;
  const include = ["structure", "qkv", "scores", "sums", "bias"];
  if (values > mostValues()) return null;
  const all = values + rows * d_model;
  return { include: all > mostValues() ? include : [...include, "projected"], encoding: all > MOST_WRITTEN ? "float16" : "json" };
}

/** The head's arrays for its rows (who looks) and columns (what is looked at). */
function parts(explained, kind, head) {
  const of = (name) => array(explained, name, kind);
  const weights = weightsOf(explained, kind);
  const rows = weights.rows === "source" ? explained.source.tokens : explained.target.tokens;
  const columns = weights.columns === "source" ? explained.source.tokens : explained.decoder_inputs;
  const [query, key, value, scores, sums, projected] = ["query", "key", "value", "scores", "sums", "projected"].map(of);
  const at = (found) => (row) => Array.from(found.row(0, 0, row));
  const offset = kind === "decoder" ? columns.length - rows.length : 0; // tokens that are read before the first step
  return {
    kind, rows, columns, scores: scoring(explained, kind, head), query: at(query), key: at(key), value: at(value),
    score: at(scores), sum: at(sums), weight: at(weights), projected: projected ? at(projected) : null,
    distance: (row, column) => column - row - offset,
    isSeen: (row, column) => kind !== "decoder" || column <= row + offset,
  };
}

/** The steps for one row: query, then each key with its score, weight and value, then the sum and its projection. */
function oneRow(found, row) {
  const { scores } = found;
  const query = found.query(row);
  const [whole, weights, sum] = [found.score(row), found.weight(row), found.sum(row)];
  const shown = found.columns.map((_, i) => i).sort((a, b) => weights[b] - weights[a]).slice(0, MOST_ROWS).sort((a, b) => a - b);
  const readout = h("p", { class: "detail", role: "status" }, t("hoverStrip"));
  const names = { query: nameOf(found.rows[row]) };
  const vector = (values, top, what, cell = Math.max(2, Math.min(6, Math.floor(190 / query.length)))) => strip([values], {
    cell, height: 14, most: top, label: what,
    tell: (_, i) => { readout.textContent = t("featureOf", { what, n: i + 1, all: values.length, value: number(values[i], 3) }); return readout.textContent; },
  });
  const most = { k: Math.max(...shown.map((i) => largest(found.key(i)))), v: Math.max(...shown.map((i) => largest(found.value(i)))) };
  const lines = shown.map((i) => {
    const key = found.key(i);
    const [isSeen, base] = [found.isSeen(row, i), scores.base(query, key)];
    const name = nameOf(found.columns[i]);
    return h("tr", { class: isSeen ? "" : "masked" },
      h("th", { scope: "row" }, h("bdi", {}, name)), h("td", {}, vector(key, most.k, t("keyOfToken", { token: name }))),
      h("td", { class: "num", title: scores.written(query, key) }, number(scores.inner(query, key))),
      scores.hasBias ? h("td", { class: "num bias" }, number(scores.bias(found.distance(row, i), whole[i], base))) : null,
      h("td", { class: "num" }, isSeen ? number(whole[i]) : `${number(whole[i])} → −∞`),
      h("td", {}, h("span", { class: "weight-bar", vars: { "--share": weights[i].toFixed(4) } }, percent(weights[i]))),
      h("td", {}, vector(found.value(i), most.v, t("valueOfToken", { token: name }))));
  });
  const columns = [t("col_keyOf"), t("col_key"), t(`inner_${scores.name}`), ...(scores.hasBias ? [t("col_bias")] : []), t("col_score"), t("col_weight"), t("col_value")];
  const table = h("table", { class: "plain head-table" },
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))), h("tbody", {}, lines),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row", colSpan: columns.length - 1 }, t("sumOfValues")), h("td", {}, vector(sum, Math.max(most.v, largest(sum)), t("sumOfValues"))))));
  const best = weights.indexOf(Math.max(...weights));
  return [
    rove(h("div", {},
      h("h3", {}, t("queryOf", { token: names.query })), vector(query, largest(query), t("queryOf", { token: names.query })),
      scores.v.length ? [h("h3", {}, t("vectorOf")), vector(scores.v, largest(scores.v), t("vectorOf"))] : null,
      readout, h("div", { class: "scroll" }, table), projection(found, row, vector)), "canvas.strip"),
    h("p", { class: "detail written" }, written(found, row, best)), h("p", { class: "faint small" }, t("sumNote", { heads: sizes().heads })),
    found.columns.length > shown.length ? h("p", { class: "faint small" }, t("mostLooked", { n: shown.length })) : null,
    asNumbers(found, row, best, shown),
  ];
}

/** What this head adds to the residual stream; a bundle of int8 alone does not tell. */
function projection(found, row, vector) {
  if (!found.projected) return null;
  const added = found.projected(row);
  const cell = Math.max(1, Math.min(4, Math.floor(1000 / added.length)));
  return [h("h3", {}, t("projectedOf", { n: added.length })), h("div", { class: "scroll projected" }, vector(added, usual(added), t("projectedOf", { n: added.length }), cell))];
}

/** How the most probable key's score comes about, by the model's formula. */
function written(found, row, best) {
  const { scores } = found;
  const [query, key, whole] = [found.query(row), found.key(best), found.score(row)[best]];
  const distance = found.distance(row, best);
  const bias = scores.hasBias ? t("plusBias", { b: number(scores.bias(distance, whole, scores.base(query, key))), n: String(distance).replace("-", "−") }) : "";
  return t(`written_${scores.name}`, {
    query: nameOf(found.rows[row]), key: nameOf(found.columns[best]), sum: scores.written(query, key), inner: number(scores.inner(query, key)),
    d: query.length, bias, score: number(whole), p: percent(found.weight(row)[best]),
  });
}

/** The same as matrices of numbers: of the features that count most, for the keys that count most. */
function asNumbers(found, row, best, shown) {
  const { scores } = found;
  const [query, weights, sum] = [found.query(row), found.weight(row), found.sum(row)];
  const keys = [...shown].sort((a, b) => weights[b] - weights[a]).slice(0, MOST_MATRIX).sort((a, b) => a - b);
  const largestOf = (values) => values.map((value, i) => [Math.abs(value), i]).sort((a, b) => b[0] - a[0]).slice(0, innerWidth < NARROW ? FEW : FEATURES).map(([, i]) => i).sort((a, b) => a - b);
  const [compared, added] = [largestOf(scores.terms(query, found.key(best))), largestOf(sum)];
  const titles = (features) => features.map((i) => t("feature", { n: i + 1 }));
  const row_ = (name, values, features, top, ...more) => [name, [...features.map((i) => values[i]), ...more], features.map((i) => values[i] / top)];
  const top = { k: Math.max(...keys.map((i) => largest(found.key(i)))), v: Math.max(...keys.map((i) => largest(found.value(i)))) };
  const scored = numbers([...titles(compared), t(`inner_${scores.name}`)],
    keys.map((i) => row_(nameOf(found.columns[i]), found.key(i), compared, top.k, scores.inner(query, found.key(i)))),
    [row_(t("query"), query, compared, largest(query), ""), ...(scores.v.length ? [row_("v", scores.v, compared, largest(scores.v), "")] : [])], "keys-numbers");
  const valued = numbers([...titles(added), t("col_weight")],
    keys.map((i) => row_(nameOf(found.columns[i]), found.value(i), added, top.v, percent(weights[i]))),
    [row_(t("sum"), sum, added, Math.max(top.v, largest(sum)), "")], "values-numbers");
  return h("div", { class: "as-numbers" },
    h("div", {}, h("h3", {}, t("keysAsNumbers", { n: compared.length })), scored), h("div", {}, h("h3", {}, t("valuesAsNumbers", { n: added.length })), valued));
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
  return h("div", { class: "split all-rows" }, table("scoresTable", found.score, (x) => number(x, 1), false), table("weightsTable", found.weight, (x) => number(x), true));
}
