// The whole model as one diagram, with the values of this text in it, step by step.

import { fill, h, percent } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { array, look, mostValues, sizes, smallMap, strip, weightsOf } from "./inside.js";
import { state, update } from "./state.js";
import { nameOf } from "./text.js";

const SHOWN = 48; // features of a strip
const EVERY = 900; // ms
/** @type {number | undefined} */
let timer;

export async function map(panel, signal) {
  clearInterval(timer);
  timer = undefined;
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const began = performance.now();
  const explained = await look({ attention: ["encoder", "decoder", "cross"], include: included() }, signal);
  const step = Math.min(state.step ?? explained.target.tokens.length, explained.target.tokens.length);
  const asked = performance.now();
  const diagram = h("div", { class: "diagram" });
  const redraw = (at) => fill(diagram, encoder(explained), decoder(explained, at));
  redraw(step);
  fill(panel, stepper(explained, step, redraw), diagram, h("p", { class: "faint small" }, t("mapNote")));
  panel.dataset.drawn = (performance.now() - asked).toFixed(1); // ms; what asking took is apart
  panel.dataset.asked = (asked - began).toFixed(1);
  return null;
}

/** The residual stream, where the answer may have as many values. */
function included() {
  const { encoder_layers, decoder_layers, d_model } = sizes();
  const source = (session.answer?.usage.source_tokens ?? 0) + 1;
  const target = (session.answer?.usage.target_tokens ?? 0) + 1;
  const values = d_model * ((4 * encoder_layers + 1) * source + (6 * decoder_layers + 1) * target);
  return values * 1.5 < mostValues() ? ["structure", "residual"] : ["structure"];
}

function stepper(explained, step, redraw) {
  const count = explained.target.tokens.length;
  const label = h("output", {});
  const slider = h("input", { type: "range", min: 1, max: count, step: 1, value: step, "aria-label": t("stepOf") });
  const show = (at) => {
    slider.value = at;
    label.textContent = `${t("step", { n: at, all: count })}: ${nameOf(explained.target.tokens[at - 1])}`;
    redraw(at);
  };
  const move = (at) => { update({ step: at >= count ? null : at }); show(at); };
  slider.addEventListener("input", () => move(Number(slider.value)));
  const play = h("button", { type: "button" }, t("play"));
  const stop = () => { clearInterval(timer); timer = undefined; play.textContent = t("play"); };
  play.addEventListener("click", () => {
    if (timer !== undefined) return stop();
    let at = Number(slider.value) >= count ? 0 : Number(slider.value);
    play.textContent = t("pause");
    const next = () => {
      if (!play.isConnected) return clearInterval(timer);
      move(at += 1);
      return at >= count ? stop() : null;
    };
    timer = setInterval(next, EVERY);
    return next();
  });
  label.textContent = `${t("step", { n: step, all: count })}: ${nameOf(explained.target.tokens[step - 1])}`;
  return h("div", { class: "options stepper" }, play, slider, label);
}

/** A part of the model; a click opens the view that shows it. */
function block(name, note, opens, ...inner) {
  return h("div", { class: "block" }, h("button", { type: "button", class: "block-name", on: { click: () => update(opens, false) } }, name), note ? h("span", { class: "faint small" }, note) : null, inner);
}

const words = (tokens, last = Infinity) => h("p", { class: "flow" }, tokens.map((token, i) => h("span", { class: i < last ? "flow-token" : "flow-token later" }, nameOf(token))));

/** x at one place: a row for each token, the first features as columns. */
function stream(explained, stack, place, last = Infinity) {
  const x = array(explained, "stream", stack);
  if (!x) return null;
  const rows = Array.from({ length: x.shape[1] }, (_, i) => Array.from(x.row(place, i)).slice(0, SHOWN).map((value) => (i < last ? value : 0)));
  return h("div", { class: "stream" }, strip(rows, { cell: 3, height: Math.max(2, Math.min(6, 90 / rows.length)), label: t("streamLabel") }));
}

function norm(explained, isBefore) {
  const isPre = explained.structure?.norm === "pre";
  return isPre === isBefore ? h("span", { class: "norm" }, t("norm")) : null;
}

/** An attention with its heads as small maps; rows that are not decoded yet are empty. */
function attention(explained, kind, layer, last = Infinity) {
  const found = weightsOf(explained, kind);
  const [, heads, rows, columns] = found.shape;
  const maps = Array.from({ length: heads }, (_, head) => {
    const cells = Array.from({ length: rows }, (_row, row) => (row < last ? Array.from(found.row(layer, head, row)) : new Array(columns).fill(0)));
    return h("button", { type: "button", class: "head-map", "aria-label": t("headName", { layer: layer + 1, head: head + 1 }), on: { click: () => update({ tab: "head", kind, layer, head }, false) } }, smallMap(cells, 44));
  });
  return block(t(`block_${kind}`), null, { tab: "attention", kind, layer, head: -1 }, norm(explained, true), h("div", { class: "head-maps" }, maps), h("span", { class: "plus" }, "+"), norm(explained, false));
}

function feedForward(explained) {
  const { activation } = explained.structure ?? {};
  return block(t("feedForward"), activation ? `${sizes().d_model} → ${sizes().d_ff} → ${sizes().d_model}, ${activation}` : null, { tab: "whatif" }, norm(explained, true), h("span", { class: "plus" }, "+"), norm(explained, false));
}

const embedding = (explained, side) => block(t("embedding"), t(explained.structure?.added_positions.includes(side) ? "plusPositions" : "noPositions"), { tab: "embeddings", side });

function encoder(explained) {
  const { encoder_layers: layers } = sizes();
  const parts = [h("h3", {}, t("encoderSide")), words(explained.source.tokens), embedding(explained, "source"), stream(explained, "encoder", 0)];
  for (let layer = 0; layer < layers; layer++) {
    parts.push(h("div", { class: "layer" }, h("span", { class: "layer-name" }, t("layerName", { layer: layer + 1 })),
      attention(explained, "encoder", layer), stream(explained, "encoder", 2 * layer + 1), feedForward(explained), stream(explained, "encoder", 2 * layer + 2)));
  }
  parts.push(h("p", { class: "faint small" }, t("memoryNote")));
  return h("div", { class: "stack" }, parts);
}

function decoder(explained, step) {
  const { decoder_layers: layers } = sizes();
  const offset = explained.decoder_inputs.length - explained.target.tokens.length;
  const last = step + offset; // tokens that are read up to this step
  const parts = [h("h3", {}, t("decoderSide")), words(explained.decoder_inputs, last), embedding(explained, "target"), stream(explained, "decoder", 0, last)];
  for (let layer = 0; layer < layers; layer++) {
    parts.push(h("div", { class: "layer" }, h("span", { class: "layer-name" }, t("layerName", { layer: layer + 1 })),
      attention(explained, "decoder", layer, step), stream(explained, "decoder", 3 * layer + 1, last),
      attention(explained, "cross", layer, step), stream(explained, "decoder", 3 * layer + 2, last),
      feedForward(explained), stream(explained, "decoder", 3 * layer + 3, last)));
  }
  return h("div", { class: "stack" }, parts, softmax(explained, step));
}

/** The next token's distribution at this step. */
function softmax(explained, step) {
  const found = explained.steps[step - 1];
  const walk = explained.target.tokens.slice(0, step - 1).map((token) => token.token ?? token.text);
  const rows = found.alternatives.map((each) => h("div", { class: each.id === found.id ? "mini-bar chosen" : "mini-bar", vars: { "--share": Math.exp(each.logprob).toFixed(3) } }, h("bdi", {}, nameOf(each)), h("span", {}, percent(Math.exp(each.logprob)))));
  return block(t("softmax"), t("softmaxNote", { n: sizes().target_vocab.toLocaleString("en") }), { tab: "next", walk, done: 0 }, h("div", { class: "mini-bars" }, rows));
}
