// What is said about an output beside its tokens: its segments, its language, its terms.

import { h, percent } from "./dom.js";
import { t } from "./i18n.js";
import { languageName } from "./intro.js";
import { state, update } from "./state.js";

/** The language that was detected, what was unknown, and which terms came. */
export function notes(output, hypothesis) {
  const found = [];
  const { detected_language: detected, unknown } = output;
  if (detected) found.push(h("p", { class: "faint small detected" }, t("detected", { language: languageName(detected.language), p: percent(detected.confidence) })));
  if (unknown?.length) found.push(h("p", { class: "faint small" }, t("unknownRead", { what: unknown.join(" ") })));
  const terms = hypothesis.terms_met ?? [];
  if (terms.length) found.push(h("p", { class: "terms-met small" }, h("span", { class: "label" }, t("terms_label")), terms.map(metTerm)));
  return found;
}

const metTerm = ({ source, target, met }) => h("span", { class: met ? "term met" : "term missed", title: t(met ? "termMet" : "termMissed") }, h("bdi", {}, source ? `${source} → ${target}` : target), met ? " ✓" : " ✗");

/** The segment that is explained, of a text that was split; -1: it was not. */
export const segmentAt = (hypothesis) => Math.min(state.segment, (hypothesis?.segments?.length ?? 0) - 1);

/** A text without its markup. */
const bare = (text) => (state.format === "html" ? new DOMParser().parseFromString(text, "text/html").body.textContent ?? "" : text).trim();

/** The source of that segment, as the model read it. */
export function segmentSource(hypothesis) {
  const [start, stop] = hypothesis.segments[segmentAt(hypothesis)].source;
  return bare(Array.from(state.source).slice(start, stop).join(""));
}

/** A whole text whose segments can be chosen: the chosen one is explained. */
export function segmentedText(hypothesis) {
  const characters = Array.from(hypothesis.text);
  const parts = [];
  let at = 0;
  hypothesis.segments.forEach(({ target: [start, stop], cut }, i) => {
    parts.push(characters.slice(at, start).join(""));
    const isChosen = i === segmentAt(hypothesis);
    parts.push(h("button", {
      type: "button", class: isChosen ? "segment chosen" : "segment", "aria-pressed": String(isChosen), title: cut ? t("segmentCut") : null, on: { click: () => update({ segment: i, target: null, walk: null, done: 0, step: null }) },
    }, characters.slice(start, stop).join("") || "∅"));
    at = stop;
  });
  parts.push(characters.slice(at).join(""));
  const which = t("segmentShown", { n: segmentAt(hypothesis) + 1, all: hypothesis.segments.length });
  return [h("p", { class: "tokens large segmented", dir: "auto" }, parts), h("h3", {}, which)];
}
