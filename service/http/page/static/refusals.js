// What the service refuses, in words of the page: its own sentences name fields of its requests.

import { t } from "./i18n.js";

/**
 * [which field, what the service says, the words for it]; what the sentence has in brackets fills the words.
 * @type {[RegExp, RegExp, (...found: string[]) => string][]}
 */
const FIELDS = [
  [/^(inputs|source)/, /vocabulary lacks: (.*); leave/, (what) => t(what.includes("' '") ? "lacksSpace" : "lacks", { what: what.replaceAll("' '", "␣") })],
  [/^(inputs|source)/, /has ([\d,]+) tokens; .* at most ([\d,]+)/, (n, most) => t("tooLong", { n, most })],
  [/^(inputs|source)/, /has (\d+) characters; at most (\d+)/, (n, most) => t("farTooLong", { n, most })],
  [/^(inputs|source)/, /is empty/, () => t("needSource")],
  [/^(terms|forbid|choices|target|prefix)/, /vocabulary lacks: (.*); leave/, (what) => t("cannotWrite", { what: what.replaceAll("' '", "␣") })],
  [/^(terms|glossary)/, /beam search|takes a beam_size/, () => t("termsBeam")],
  [/^terms/, /the term '(.*)' has /, (term) => t("termForbidden", { term })],
  [/^terms/, /take (\d+) tokens, and (\d+) fit/, (n, most) => t("termsTooLong", { n, most })],
  [/^choices/, /are whole answers/, () => t("choicesAlone")],
  [/^protect_pattern/, /regular expression of RE2: (.*)\./, (why) => t("wrongPattern", { why })],
  [/^(split|protect|source_language)/, /not installed here; run: (.*)\./, (command) => t("notInstalled", { command })],
  [/^attention/, /would answer ([\d,]+) .* at most ([\d,]+)/, (n, most) => t("tooManyValues", { n, most })],
  [/^(source|target)_language/, /is missing/, () => t("needLanguage")],
];
const TYPES = { queue_full: "busy", rate_limited: "tooOften", not_ready: "notReady", deadline: "tooLate", internal_error: "failed" };
const STATUSES = { 413: "tooMuch", 429: "busy", 500: "failed", 502: "noService", 503: "notReady", 504: "tooLate" };
/** Fields that a visitor sets, by the page's name for them. */
const NAMES = {
  inputs: "source", source: "source", beam_size: "beamSize", num_hypotheses: "count", length_penalty: "penalty", temperature: "temperature", top_p: "topp", seed: "seed",
  source_language: "from", target_language: "to", terms: "terms_label", glossary: "glossary", forbid: "forbid_label", choices: "choices_label", split: "split",
  protect_pattern: "pattern", target_tokens: "target", prefix_tokens: "soFar",
};

/** @returns {string} */
export function inOwnWords({ message = "", field = "", type = "" }, status) {
  for (const [name, sentence, words] of FIELDS) {
    const found = name.test(field ?? "") && sentence.exec(message);
    if (found) return words(...found.slice(1));
  }
  if (type === "not_found" && /explain is switched off/.test(message)) return t("unexplained");
  const word = message && status !== 404 && status !== 422 && status !== 400 ? TYPES[type] ?? STATUSES[status] : null;
  if (word) return t(word);
  return message ? named(message) : t(STATUSES[status] ?? "status", { status });
}

/** A sentence of the service with the page's names of its fields. */
const named = (message) => message.replace(/\b([a-z]+(?:_[a-z]+)*)\b(\[\d+\])?/g, (whole, name, place, at) => {
  const isName = Object.hasOwn(NAMES, name) && (name.includes("_") || name === "inputs" || at === 0 || place);
  return isName ? `“${t(NAMES[name])}”` : whole;
});
