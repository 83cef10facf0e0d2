// The three scores of a query and a key, each by its own formula, with the numbers.

import { number } from "./dom.js";
import { t } from "./i18n.js";
import { array } from "./inside.js";

const PRINTED = 3; // terms of a sum that are written out
const sum = (values) => values.reduce((all, x) => all + x, 0);

/** `terms` add up to `inner`, of which the score without bias is `score(inner, d)`; `write` is one of the terms. */
const SCORES = {
  dot: { term: (q, k) => q * k, write: (q, k) => `${q}·${k}`, score: (inner, d) => inner / Math.sqrt(d) },
  gaussian: { term: (q, k) => (q - k) ** 2, write: (q, k) => `(${q} − ${k})²`, score: (inner, d) => -inner / 2 / Math.sqrt(d) },
  additive: { term: (q, k, v) => Math.tanh(q + k) * v, write: (q, k, v) => `${v}·tanh(${q} + ${k})`, score: (inner) => inner },
};

/** How a head scores: by the structure of the model, its vector (additive) and its bias (relative positions). */
export function scoring(explained, kind, head) {
  const name = Object.hasOwn(SCORES, explained.structure?.score) ? explained.structure.score : "dot";
  const { term, write, score } = SCORES[name];
  const vector = array(explained, "vector", kind);
  const v = vector ? Array.from(vector.row(0, 0)) : [];
  const table = kind === "cross" ? null : array(explained, "bias", kind);
  const terms = (query, key) => query.map((q, i) => term(q, key[i], v[i]));
  const inner = (query, key) => sum(terms(query, key));
  const base = (query, key) => score(inner(query, key), query.length);
  return {
    name, v, terms, inner, base, hasBias: table !== null,
    /** What is added for the distance of a key after its query; past the table, what the score has beside `rest`. */
    bias: (distance, whole, rest) => {
      const at = table.places.indexOf(String(distance));
      return at < 0 ? whole - rest : table.row(head)[at];
    },
    /** The sum, its largest terms first. */
    written: (query, key) => {
      const order = terms(query, key).map((value, i) => [Math.abs(value), i]).sort((a, b) => b[0] - a[0]);
      const first = order.slice(0, PRINTED).map(([, i]) => write(number(query[i]), number(key[i]), number(v[i])));
      return `${first.join(" + ")}${order.length > PRINTED ? " + …" : ""}`;
    },
    formula: t(`formula_${name}`, { bias: table ? ` + ${t("biasOfDistance")}` : "" }),
  };
}
