// One softmax at a time: walk through the decoding by hand.

import { request, sentenceOf } from "./api.js";
import { field, fill, h, number, percent } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { explainedSource, explainedTokens, where } from "./requests.js";
import { state, update } from "./state.js";
import { allowedFields } from "./terms.js";
import { nameOf } from "./text.js";

const WHOLE = 5000; // vocabularies up to this many tokens are asked for whole
const MANY = 1000; // tokens of a larger one
const MOST_BARS = 16;
let hasMoved = false; // by a choice here: the focus goes on with it

/** Unknown until the model is loaded. */
const vocabulary = () => session.info?.bundle.sizes.target_vocab ?? Infinity;

/** The tokens so far: those that were chosen, else those before the least certain token of the output. */
export function walked() {
  if (state.walk) return state.walk;
  const { tokens, logprobs } = explainedTokens();
  const own = logprobs.slice(0, tokens.length);
  return tokens.slice(0, Math.max(0, own.indexOf(Math.min(...own))));
}

export function nextBody() {
  return { source: explainedSource(), prefix_tokens: walked(), top_k: vocabulary() <= WHOLE ? 0 : MANY, ...where(), ...allowedFields() };
}

/** softmax(logits / temperature) from the probabilities at temperature 1. */
export function reheat(tokens, temperature) {
  const logits = tokens.map(({ logprob }) => (logprob === null ? -Infinity : logprob / temperature));
  const most = Math.max(...logits);
  const weights = logits.map((x) => Math.exp(x - most));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / sum);
}

/** How many of the most probable tokens top-p keeps: the fewest that together have `p`. */
export function kept(probabilities, p) {
  let sum = 0;
  for (let i = 0; i < probabilities.length; i++) {
    sum += probabilities[i];
    if (sum >= p - 1e-9) return i + 1;
  }
  return probabilities.length;
}

export async function nextToken(panel, signal) {
  const takesFocus = hasMoved;
  hasMoved = false;
  if (!state.source) return fill(panel, h("p", { class: "faint" }, t("needSource")));
  const step = await nextStep(signal);
  if (signal.aborted) return null; // the state moved on meanwhile
  const bars = h("div", { class: "bars" });
  const note = h("p", { class: "faint small", role: "status" });
  const redraw = () => { if (step.tokens) drawBars(bars, note, step); };
  if (step.failure) fill(bars, h("p", { class: "error", role: "alert" }, step.failure));
  fill(
    panel, path(), sliders(redraw),
    state.done ? h("p", { class: "done" }, t("ended")) : [bars, note], buttons(step),
  );
  redraw();
  if (takesFocus) (bars.querySelector("button") ?? panel.querySelector(".actions button:enabled"))?.focus();
  return null;
}

/** The tokens to choose from, null after the end or a `failure`; `take` goes on with one of them, and only once. */
async function nextStep(signal) {
  const name = JSON.stringify(nextBody());
  const isHere = () => state.done === 0 && JSON.stringify(nextBody()) === name;
  const take = (token) => {
    if (!isHere()) return; // a second click
    if (token.id === session.info?.bundle.special_ids.eos) go(walked(), 1);
    else go([...walked(), token.token]);
  };
  if (!isHere()) return { tokens: null, take };
  try {
    if (session.next?.name !== name) session.next = { name, answer: await request("/v1/next-token", nextBody(), signal) };
    for (const token of session.next.answer.tokens) shownAs.set(token.token, token.text);
    return { tokens: session.next.answer.tokens, take };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { tokens: null, failure: sentenceOf(error), take };
  }
}

function path() {
  const crumbs = [h("button", { type: "button", class: "crumb", on: { click: () => go([]) } }, t("startHere"))];
  session.explained?.target.tokens.forEach((token) => { if (token.token) shownAs.set(token.token, token.text); });
  walked().forEach((token, i) => {
    const back = () => go(walked().slice(0, i + 1));
    crumbs.push(h("button", { type: "button", class: "crumb", on: { click: back } }, h("bdi", {}, shownAs.get(token) ?? token)));
  });
  if (state.done) crumbs.push(h("span", { class: "crumb" }, t("endName")));
  return h("p", { class: "path" }, h("span", { class: "label" }, t("soFar")), crumbs);
}

const shownAs = new Map(); // token to what it stands for

function sliders(redraw) {
  const slider = (key, label, min, max, step) => {
    const value = h("output", {}, number(state[key]));
    const input = h("input", {
      type: "range", min, max, step, value: state[key], name: key,
      on: { input: (event) => {
        update({ [key]: Number(event.target.value) });
        value.textContent = number(state[key]);
        redraw();
      } },
    });
    return field(t(label), input, value);
  };
  return h("div", { class: "options" }, slider("t", "temperature", 0.1, 3, 0.05), slider("p", "topp", 0.05, 1, 0.01));
}

function drawBars(bars, note, { tokens, take }) {
  const probabilities = reheat(tokens, state.t);
  const count = kept(probabilities, state.p);
  const most = probabilities[0];
  const rows = [];
  const shown = Math.min(tokens.length, MOST_BARS);
  for (let i = 0; i < shown; i++) {
    if (i === count) rows.push(cutLine(count, tokens.length));
    rows.push(bar(tokens[i], probabilities[i], probabilities[i] / most, i < count, take));
  }
  if (count === shown) rows.push(cutLine(count, tokens.length));
  if (tokens.length > shown) {
    const rest = probabilities.slice(shown).reduce((a, b) => a + b, 0);
    rows.push(h("p", { class: "faint small more" }, t("more", { n: tokens.length - shown, p: percent(rest) })));
    if (count > shown) rows.push(cutLine(count, tokens.length));
  }
  fill(bars, rows);
  const entropy = -probabilities.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);
  const parts = [t("entropy", { h: number(entropy), t: number(state.t) })];
  if (tokens.length < vocabulary()) parts.push(t("tail", { n: tokens.length }));
  note.textContent = parts.join(" · ");
}

const cutLine = (n, all) => h("div", { class: "cut" }, h("span", {}, t("cut", { p: number(state.p), n, all })));

function bar(token, probability, share, isKept, take) {
  return h("button", {
    type: "button", class: isKept ? "bar" : "bar out", vars: { "--share": share.toFixed(4) }, on: { click: () => take(token) },
  }, h("bdi", { class: "name" }, nameOf(token) || " "), h("span", { class: "track" }, h("span", { class: "fill" })), h("span", { class: "value" }, percent(probability)));
}

function go(walk, done = 0) {
  hasMoved = true;
  update({ walk, done }, false);
}

function buttons({ tokens, take }) {
  const act = (label, run, isOff) => h("button", { type: "button", disabled: isOff, on: { click: run } }, t(label));
  return h(
    "div", { class: "actions" },
    act("takeBest", () => take(tokens[0]), !tokens), act("draw", () => take(drawn(tokens)), !tokens),
    act("back", () => go(state.done ? walked() : walked().slice(0, -1)), !walked().length && !state.done), act("restart", () => go([]), !walked().length),
  );
}

/** A token at random, by the distribution that the sliders leave. */
function drawn(tokens) {
  const probabilities = reheat(tokens, state.t);
  const count = kept(probabilities, state.p);
  let x = Math.random() * probabilities.slice(0, count).reduce((a, b) => a + b, 0);
  for (let i = 0; i < count; i++) {
    x -= probabilities[i];
    if (x <= 0) return tokens[i];
  }
  return tokens[0];
}
