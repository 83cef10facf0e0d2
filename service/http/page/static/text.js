// Tokens in their text: tinted by probability, with a line beneath as long as the entropy.

import { h, number, percent, rove } from "./dom.js";
import { t } from "./i18n.js";

const LONG = 60; // tokens, from where on letters are smaller
let special = {}; // ids by their names

export const setSpecial = (ids) => { special = ids; };

/** What is written for a token: those that stand for no text have short names, and spaces can be seen. */
export function nameOf(token) {
  if (token.id !== undefined && token.id === special.eos) return t("endName");
  if (token.id !== undefined && token.id === special.bos) return t("startName");
  return token.text && !token.text.trim() ? "␣".repeat(token.text.length) : isolated(token.text);
}

const BYTES = /(?:<0x[0-9A-F]{2}>)+/g;

/** Bytes within a token keep their order beside letters from right to left. */
const isolated = (text) => (text.replace(BYTES, "") ? text.replace(BYTES, "\u2066$&\u2069") : text);

const RIGHT_TO_LEFT = /^\P{L}*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Nko}\p{Script=Syriac}\p{Script=Thaana}]/u;

/** Whether a text is written from right to left: its first letter says so, as for `dir="auto"`. */
export const isRightToLeft = (text) => RIGHT_TO_LEFT.test(text);

const MOST_ENTROPY = 3; // nats: the line is as long as the token from there on

const REPLACEMENT = "\ufffd"; // what a text has for bytes that are no character

/** Pieces of a text: [token index or null, what is shown, whether it is no text]. Tokens that have a part of a character are shown by their bytes. */
export function pieces({ text, tokens }) {
  const characters = Array.from(text);
  const found = [];
  let at = 0;
  tokens.forEach((token, i) => {
    if (token.start === null) {
      found.push([i, nameOf(token), true]);
      return;
    }
    const shares = [tokens[i - 1], tokens[i + 1]].some((other) => other && other.start !== null && other.start < token.end && token.start < other.end);
    const own = characters.slice(token.start, token.end).join("");
    const isBytes = shares || own.includes(REPLACEMENT);
    if (token.start > at) found.push([null, characters.slice(at, token.start).join(""), false]);
    found.push([i, isBytes ? isolated(token.text) : own, isBytes]);
    at = Math.max(at, token.end);
  });
  if (at < characters.length) found.push([null, characters.slice(at).join(""), false]);
  return found;
}

/**
 * A text as elements; `decorate(span, i)` is called for each token.
 * @param {TokenizedText} side
 * @param {(span: HTMLElement, i: number) => void} [decorate]
 */
export function tokenText(side, decorate = () => {}, name = "tokens") {
  const spans = pieces(side).map(([i, shown, isMark]) => {
    if (i === null) return shown;
    const span = h("span", { class: isMark ? "token mark" : "token", data: { i } }, shown || " ");
    decorate(span, i);
    return span;
  });
  return rove(h("p", { class: side.tokens.length > LONG ? `${name} long` : name, dir: "auto" }, spans), ".token");
}

export function tint(span, probability, entropy = null) {
  span.style.setProperty("--doubt", (1 - probability).toFixed(3));
  if (entropy !== null) span.style.setProperty("--entropy", Math.min(1, entropy / MOST_ENTROPY).toFixed(3));
}

/** The target of an explanation, tinted; a token under the pointer or the focus is described in `detail`. */
export function explainedText(explained, detail) {
  return tokenText(explained.target, (span, i) => {
    const step = explained.steps[i];
    tint(span, Math.exp(step.logprob), step.entropy);
    const others = step.alternatives.filter((other) => other.id !== step.id);
    const words = t("tokenDetail", {
      token: nameOf(step), p: percent(Math.exp(step.logprob)), h: number(step.entropy),
      others: others.map((other) => `${nameOf(other)} ${percent(Math.exp(other.logprob))}`).join(", ") || "–",
    });
    describe(span, words, detail);
  }, "tokens large");
}

/** A hypothesis as generate answers it, before it is explained. */
export function plainText(hypothesis, detail) {
  const texts = hypothesis.token_texts ?? hypothesis.tokens;
  return tokenText({ text: hypothesis.text, tokens: placed(hypothesis.text, texts) }, (span, i) => {
    const p = Math.exp(hypothesis.logprobs[i]);
    tint(span, p);
    describe(span, t("tokenBrief", { token: texts[i], p: percent(p) }), detail);
  }, "tokens large");
}

/** Tokens with their places in the text; those that are not found, as bytes are not, share what is between the others. */
export function placed(whole, texts) {
  const characters = Array.from(whole);
  const tokens = texts.map((text) => ({ text, start: null, end: null }));
  let at = 0;
  let lost = [];
  const share = (start, end) => {
    if (characters.slice(start, end).join("").trim()) for (const token of lost) Object.assign(token, { start, end });
    lost = [];
  };
  for (const token of tokens) {
    const own = Array.from(token.text.trim() || token.text);
    const start = own.length ? indexOf(characters, own, at) : -1;
    if (start < 0) lost.push(token);
    else {
      share(at, start);
      at = start + own.length;
      Object.assign(token, { start, end: at });
    }
  }
  share(at, characters.length);
  return tokens;
}

function indexOf(characters, token, from) {
  for (let i = from; i + token.length <= characters.length; i++) {
    if (token.every((character, k) => character === characters[i + k])) return i;
  }
  return -1;
}

function describe(span, words, detail) {
  span.setAttribute("role", "img"); // only what has a role can have a name
  span.setAttribute("aria-label", words);
  for (const event of ["mouseenter", "focus"]) span.addEventListener(event, () => { detail.textContent = words; });
}
