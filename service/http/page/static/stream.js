// The residual stream on the map: strips that open as numbers, the norms, and the connections around sub-layers.

import { h } from "./dom.js";
import { t } from "./i18n.js";
import { array, numbers, strip, usual } from "./inside.js";
import { update } from "./state.js";
import { nameOf } from "./text.js";

const SHOWN = 48; // features of a strip
const NUMBERS = 6; // of a table
const MOST_TOKENS = 16;

/** @typedef {{explained: Explained, kind: string, layer: number | null, last: number}} Part the sub-layer, or with layer null a stack's embeddings */

const stackOf = (kind) => (kind.startsWith("encoder") ? "encoder" : "decoder");
const tokensOf = ({ explained, kind }) => (stackOf(kind) === "encoder" ? explained.source.tokens : explained.decoder_inputs);
const placeOf = ({ kind, layer }) => (layer === null ? "embedding" : `${kind} ${layer}`);
const titleOf = ({ kind, layer }) => (layer === null ? t("streamFirst") : t("streamAfter", { layer: layer + 1, part: t(kind.endsWith("feed_forward") ? "feedForward" : `block_${kind}`) }));

/** x (of "stream") after a sub-layer, or what the sub-layer adds to it ("output"); null where it was not asked for. */
function at(part, name, before = 0) {
  const found = array(part.explained, name, stackOf(part.kind));
  if (!found) return null;
  const place = found.places.indexOf(placeOf(part)) - before;
  return Array.from({ length: found.shape[1] }, (_, i) => Array.from(found.row(place, i)));
}

/** A row for each token, the first features as columns; a click opens its numbers. */
export function stream(part) {
  const found = array(part.explained, "stream", stackOf(part.kind));
  if (!found) return null;
  const [, tokens, width] = found.shape;
  const x = found.row(found.places.indexOf(placeOf(part)));
  const shown = Array.from({ length: tokens }, (_, i) => (i < part.last ? Array.from(x.slice(i * width, i * width + SHOWN)) : new Array(Math.min(SHOWN, width)).fill(0)));
  const picture = strip(shown, { cell: 3, height: Math.max(2, Math.min(6, 90 / tokens)), most: usual(x), label: t("streamLabel") });
  return opens("stream", titleOf(part), picture, () => [table(part, at(part, "stream") ?? [])]);
}

/** A button that shows more beneath it, until it is pressed again. */
function opens(name, label, inner, more) {
  const place = h("div", { class: "opened", hidden: true });
  const button = h("button", { type: "button", class: name, "aria-label": label, title: label, "aria-expanded": "false", on: { click: () => {
    place.hidden = !place.hidden;
    button.setAttribute("aria-expanded", String(!place.hidden));
    place.replaceChildren(...(place.hidden ? [] : [h("h4", {}, label), ...more()]));
  } } }, inner);
  return [button, place];
}

const mean = (values) => values.reduce((all, x) => all + x, 0) / values.length;
const deviation = (values) => Math.sqrt(Math.max(0, mean(values.map((x) => x * x)) - mean(values) ** 2));
const rootMeanSquare = (values) => Math.sqrt(mean(values.map((x) => x * x)));

/** The first features of the tokens that are read, with what a norm would take of all. */
function table(part, rows) {
  const isRms = part.explained.structure?.norm_kind === "rms";
  const top = usual(rows.flat());
  const titles = Array.from({ length: Math.min(NUMBERS, rows[0].length) }, (_, i) => t("feature", { n: i + 1 }));
  const lines = rows.slice(0, Math.min(part.last, MOST_TOKENS)).map((row, i) => {
    const own = row.slice(0, NUMBERS);
    return [nameOf(tokensOf(part)[i]), [...own, ...(isRms ? [rootMeanSquare(row)] : [mean(row), deviation(row)])], own.map((x) => x / top)];
  });
  return numbers([...titles, ...(isRms ? [t("rms")] : [t("average"), t("deviation")])], lines, [], "stream-numbers");
}

/** The norm of a sub-layer: its formula, and what it reads; with post-norm also what it gives. */
export function norm(part) {
  const { norm: place, norm_kind: kind } = part.explained.structure ?? {};
  const more = () => {
    const [before, added, after] = [at(part, "stream", 1), at(part, "output"), at(part, "stream")];
    const formula = h("p", { class: "formula" }, t(`norm_${kind}`));
    if (!before || !added || !after) return [formula];
    const x = place === "pre" ? before : before.map((row, i) => row.map((value, j) => value + added[i][j]));
    return [formula, h("p", { class: "small" }, t(`reads_${place}`)), table(part, x), ...(place === "pre" ? [] : [h("p", { class: "small" }, t("normGives")), table(part, after)])];
  };
  return opens("norm", `${t(kind === "rms" ? "rmsNorm" : "layerNorm")}: ${t(`norm_at_${place}`)}`, t("norm"), more);
}

/** With pre-norm, the norm at the end of a stack: no sub-layer follows that would begin with one. */
export function finalNorm(part) {
  const { norm: place, norm_kind: kind } = part.explained.structure ?? {};
  if (place !== "pre") return null;
  const more = () => {
    const x = at(part, "stream");
    return [h("p", { class: "formula" }, t(`norm_${kind}`)), x ? table(part, x) : null].filter((each) => each !== null);
  };
  return opens("norm", `${t(kind === "rms" ? "rmsNorm" : "layerNorm")}: ${t("norm_at_end")}`, t("norm"), more);
}

/** The residual connection, which What if switches off. */
export function plus({ kind, layer }) {
  const label = t("plusLabel");
  return h("button", { type: "button", class: "plus", "aria-label": label, title: label, data: { of: `residual ${kind} ${layer}` }, on: { click: () => update({ tab: "whatif" }, false) } }, "+");
}
