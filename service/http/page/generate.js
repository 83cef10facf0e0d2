// Type, and see the output stream; then what the search found.

import { Failure, request, stream } from "./api.js";
import { fill, find, h, keepFocus, number } from "./dom.js";
import { t } from "./i18n.js";
import { state, update } from "./state.js";
import { explainedText, plainText, tint } from "./text.js";

let running = null; // aborts the request under way
export const session = { answer: null, explained: null, kinds: new Map(), info: null, model: null, tree: null, failure: null };

/** The options of the search, as the service takes them. */
export function options() {
  const found = { ...where() };
  if (state.mode === "greedy" && session.info?.defaults?.beam_size > 1) found.beam_size = 1; // the model's own default is more
  if (state.mode === "beam") Object.assign(found, { beam_size: state.beam, length_penalty: state.penalty });
  if (state.mode === "sample") {
    Object.assign(found, { temperature: state.temperature, seed: state.seed });
    if (state.topp < 1) found.top_p = state.topp;
  }
  if (hypotheses() > 1) found.num_hypotheses = hypotheses();
  return found;
}

const hypotheses = () => ({ greedy: 1, beam: Math.min(state.count, state.beam), sample: state.samples })[state.mode] ?? 1;

/** The model and its languages, where they are chosen. */
export function where() {
  const found = {};
  if (session.model) found.model = session.model;
  if (state.from) found.source_language = state.from;
  if (state.to) found.target_language = state.to;
  return found;
}

export const generateBody = () => ({ inputs: state.source, ...options(), logprobs: true });

export function explainBody(more = {}) {
  const search = state.target ? { ...where(), target_tokens: state.target } : options();
  return { source: state.source, ...search, ...more };
}

/** Run the search, then explain it; `done` redraws what depends on it. */
export async function generate(done) {
  stop();
  Object.assign(session, { answer: null, explained: null });
  session.tree = null;
  session.failure = null;
  session.kinds.clear();
  showError(null);
  if (!state.source) {
    fill(find("#result"), h("p", { class: "faint" }, t("nothing")));
    done();
    return;
  }
  if (state.mode === "sample" && state.seed === null) update({ seed: Math.floor(Math.random() * 2 ** 31) });
  const control = (running = new AbortController());
  label("stop");
  try {
    await streamed(control.signal);
    drawResult(done);
    await explainOutput(control.signal);
    if (control.signal.aborted) return;
    drawResult(); // parts ask for the explanation themselves
  } catch (error) {
    if (error.name === "AbortError" || control.signal.aborted) return;
    showError(error);
    done();
  } finally {
    if (running === control) {
      running = null;
      label("generate");
    }
  }
}

/** Without it the output lacks entropies and alternatives, and says why. */
async function explainOutput(signal) {
  try {
    await explain(signal);
  } catch (error) {
    if (signal.aborted || !(error instanceof Failure) || error.status === 0) throw error;
    session.failure = error.message;
  }
}

export function stop() {
  running?.abort();
  const was = running !== null;
  running = null;
  if (was) label("generate");
  return was;
}

export const isRunning = () => running !== null;

/** What the button does; it keeps that when the page is translated. */
function label(name) {
  find("#go").dataset.t = name;
  find("#go").textContent = t(name);
}

async function streamed(signal) {
  const began = performance.now();
  const text = h("p", { class: "tokens large streaming", dir: "auto" });
  fill(find("#result"), text);
  let first = null;
  const events = state.mode === "sample" && hypotheses() > 1 ? whole(signal) : stream("/v1/generate", generateBody(), signal);
  try {
    for await (const [name, data] of events) {
      if (name === "token") {
        first ??= performance.now() - began;
        const token = h("span", { class: "token" }, data.text);
        tint(token, Math.exp(data.logprob));
        text.append(token);
      } else {
        session.answer = { ...data, first: first ?? performance.now() - began, all: performance.now() - began };
      }
    }
  } finally {
    text.classList.remove("streaming");
  }
}

/** Several samples are not streamed. */
async function* whole(signal) {
  yield ["done", await request("/v1/generate", generateBody(), signal)];
}

/** What is asked of an explanation; a long text's layers one at a time. */
export function wantedOf() {
  const { source_tokens: s, target_tokens: n } = session.answer?.usage ?? { source_tokens: 0, target_tokens: 0 };
  const sizes = session.info?.bundle.sizes ?? { heads: 8, encoder_layers: 6, decoder_layers: 6 };
  const layers = state.kind === "encoder" ? sizes.encoder_layers : sizes.decoder_layers;
  const rows = state.kind === "encoder" ? s + 1 : n + 1;
  const columns = state.kind === "decoder" ? n + 1 : s + 1;
  const fits = layers * sizes.heads * rows * columns <= (session.info?.limits.max_explain_values ?? 1e6);
  const wanted = { attention: [state.kind] };
  if (!fits) wanted.layers = [Math.min(state.layer, layers - 1)];
  if (state.align) wanted.alignment_method = state.align;
  return wanted;
}

/** What one kind of attention needs is asked for once. */
export async function explain(signal = null) {
  if (!session.answer) return null;
  const name = JSON.stringify([wantedOf(), state.target]);
  if (!session.kinds.has(name)) {
    const asked = request("/v1/explain", explainBody({ ...wantedOf(), encoding: "uint8" }), signal);
    session.kinds.set(name, asked);
    asked.catch(() => session.kinds.delete(name));
  }
  const { answer } = session;
  const { target } = state;
  const explained = await session.kinds.get(name);
  if (session.answer === answer && same(state.target, target)) session.explained = explained; // else it is of another
  return explained;
}

/** The output with its details and hypotheses. */
export function drawResult(done = () => {}) {
  const { answer, explained } = session;
  if (!answer) return;
  const found = answer.outputs[0].hypotheses;
  const chosen = state.target ? found.findIndex((each) => same(each.tokens, state.target)) : 0;
  const shown = found[Math.max(0, chosen)];
  const detail = h("p", { class: "detail", role: "status" }, session.failure ?? t("legend"));
  const text = explained ? explainedText(explained, detail) : plainText(shown, detail);
  const { timing, usage } = answer;
  const times = { queue: number(timing.queue_ms, 1), encode: number(timing.encode_ms, 1), decode: number(timing.decode_ms, 1), first: number(answer.first, 0), all: number(answer.all, 0) };
  const reason = shown.finish_reason === "stop" ? null : h("p", { class: "faint" }, t(`finish_${shown.finish_reason}`));
  keepFocus(find("#result"), () => fill(
    find("#result"), shown.text || explained ? text : h("p", { class: "faint" }, t("empty")), detail, reason,
    found.length > 1 ? list(found, Math.max(0, chosen)) : null,
    h("p", { class: "faint small" }, `${t("usage", { source: usage.source_tokens, target: usage.target_tokens })} · ${t("timing", times)}`),
  ));
  done();
}

function list(found, chosen) {
  const best = Math.max(...found.map((each) => each.score));
  const rows = found.map((each, i) => h("button", {
    type: "button", class: i === chosen ? "hypothesis chosen" : "hypothesis", "aria-pressed": String(i === chosen), vars: { "--share": Math.exp(each.score - best).toFixed(3) },
    on: { click: () => update({ target: i === 0 ? null : each.tokens }, false) },
  }, h("span", { class: "words", dir: "auto" }, each.text || t("empty")), h("span", { class: "score" }, `${number(each.score, 3)}`)));
  return [h("h3", {}, `${t("hypotheses")} (${t("score")})`), h("div", { class: "hypotheses" }, rows)];
}

/** Explain the hypothesis that was chosen. */
export async function explainChosen(done) {
  const { answer } = session;
  const { target } = state;
  let failed = null;
  session.explained = null; // that of another hypothesis
  try {
    await explain();
  } catch (error) {
    failed = error;
  }
  if (session.answer !== answer || !same(state.target, target)) return; // another was chosen meanwhile
  showError(failed);
  drawResult(done);
}

export function showError(error) {
  const place = find("#error");
  place.hidden = error === null;
  place.textContent = error === null ? "" : error instanceof Failure ? error.message : String(error);
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
