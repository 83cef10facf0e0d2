// Type, and see the output stream; then what the search found.

import { notes, segmentedText } from "./answer.js";
import { request, sentenceOf, stream } from "./api.js";
import { fill, find, h, keepFocus, number } from "./dom.js";
import { t } from "./i18n.js";
import { explainBody, generateBody, hypotheses, segmented } from "./requests.js";
import { state, update } from "./state.js";
import { explainedText, plainText, tint } from "./text.js";

const KEPT = 24; // explanations
const SPOKEN = 200; // characters that a screen reader is given of the output
const NEAR = 40; // pixels above the newest token, from where it is still followed
let control = new AbortController(); // aborts what was asked for the output
let isBusy = false;
const NOTHING = { answer: null, explained: null, tree: null, next: null, failure: null };
/** @type {Session} */
export const session = { ...NOTHING, kinds: new Map(), models: [], model: null, info: null };

/** Run the search, then explain it; `done` redraws what depends on it. */
export async function generate(done) {
  stop();
  Object.assign(session, NOTHING);
  session.kinds.clear();
  showError(null);
  speak("");
  if (!state.source) {
    fill(find("#result"), h("p", { class: "faint", data: { t: "nothing" } }, t("nothing")));
    done();
    return;
  }
  if (state.mode === "sample" && state.seed === null) update({ seed: Math.floor(Math.random() * 2 ** 31) });
  const { signal } = control;
  setBusy(true);
  try {
    await streamed(signal);
    const isWhole = segmented() === null; // else parts need the segment's explanation
    drawResult(isWhole ? done : undefined);
    speak(/** @type {Answer} */ (session.answer).outputs[0].hypotheses[0].text || t("empty"));
    if (await explainOutput()) drawResult(isWhole ? undefined : done); // parts ask for the explanation themselves
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    showError(error);
    done();
  } finally {
    if (!signal.aborted) setBusy(false);
  }
}

/** Ask for the steps of the hypothesis that is shown, if it still is when they come. Without them the output says why. */
async function explainOutput() {
  const { answer } = session;
  const { target, segment } = state;
  const { signal } = control;
  /** @type {Pick<Session, "explained" | "failure">} */
  const found = { explained: null, failure: null };
  try {
    found.explained = await explain(stepsWanted());
  } catch (error) {
    if (signal.aborted || !error.status) throw error;
    found.failure = error.message;
  }
  const isShown = session.answer === answer && same(state.target, target) && state.segment === segment;
  if (isShown) Object.assign(session, found);
  return isShown;
}

export function stop() {
  control.abort();
  control = new AbortController();
  setBusy(false);
}

export const isRunning = () => isBusy;

function setBusy(is) {
  isBusy = is;
  if (!is && document.activeElement === find("#stop")) find("#go").focus();
  find("#stop").hidden = !is;
  find("#output").setAttribute("aria-busy", String(is));
}

/** For screen readers: once, not with every token. */
function speak(text) {
  find("#spoken").textContent = Array.from(text).slice(0, SPOKEN).join("");
}

async function streamed(signal) {
  const began = performance.now();
  const text = h("p", { class: "tokens large streaming", dir: "auto" });
  fill(find("#result"), text);
  /** @type {number | null} */
  let first = null;
  const events = state.mode === "sample" && hypotheses() > 1 ? whole(signal) : stream("/v1/generate", generateBody(), signal);
  try {
    for await (const [name, data] of events) {
      if (name === "token") {
        first ??= performance.now() - began;
        const token = h("span", { class: "token" }, data.text);
        tint(token, Math.exp(data.logprob));
        const isFollowed = text.scrollHeight - text.scrollTop - text.clientHeight < NEAR;
        text.append(token);
        if (isFollowed) text.scrollTop = text.scrollHeight;
      } else if (name === "text") {
        text.append(data.text); // what is of no token
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

/** What is asked of an explanation for the output and the alignment: no weights, which may be too many. */
export const stepsWanted = () => ({ attention: [], ...aligned() });

/** And for the maps: a long text's layers one at a time, a very long one's with their heads averaged. */
export function mapWanted() {
  const { tokens } = session.answer?.outputs[0].hypotheses[0] ?? { tokens: [] };
  const { heads, encoder_layers, decoder_layers } = session.info?.bundle.sizes ?? { heads: 8, encoder_layers: 6, decoder_layers: 6 };
  const source = (session.answer?.usage.source_tokens ?? 0) + 1;
  const target = (state.target ?? tokens).length + 1;
  const [layers, values] = { encoder: [encoder_layers, source * source], decoder: [decoder_layers, target * target], cross: [decoder_layers, target * source] }[state.kind];
  const most = session.info?.limits.max_explain_values ?? 1e6;
  /** @type {Record<string, any>} */
  const wanted = { attention: [state.kind], ...aligned() };
  if (layers * heads * values > most) wanted.layers = [Math.min(state.layer, layers - 1)];
  if (heads * values > most) wanted.average = "heads";
  return wanted;
}

const aligned = () => (state.align ? { alignment_method: state.align } : {});

/**
 * The explanation with what is wanted, asked for once. It is aborted with the output, or with the part that asks.
 * @returns {Promise<Explained>}
 */
export function explain(wanted, signal = control.signal) {
  const body = explainBody({ encoding: "uint8", ...wanted });
  const name = JSON.stringify(body);
  const known = session.kinds.get(name);
  if (known) return known;
  const asked = request("/v1/explain", body, signal);
  const forget = () => { if (session.kinds.get(name) === asked) session.kinds.delete(name); };
  signal.addEventListener("abort", forget);
  asked.then(() => signal.removeEventListener("abort", forget), forget);
  session.kinds.set(name, asked);
  if (session.kinds.size > KEPT) session.kinds.delete([...session.kinds.keys()][0]);
  return asked;
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
  const whole = segmented();
  const { timing, usage } = answer;
  const times = { queue: number(timing.queue_ms, 1), encode: number(timing.encode_ms, 1), decode: number(timing.decode_ms, 1), first: number(answer.first, 0), all: number(answer.all, 0) };
  const reason = shown.finish_reason === "stop" ? null : h("p", { class: "faint" }, t(`finish_${shown.finish_reason}`));
  keepFocus(find("#result"), () => fill(
    find("#result"), whole ? segmentedText(whole) : null,
    whole && !explained ? null : shown.text || explained ? text : h("p", { class: "faint" }, t("empty")), detail, notes(answer.outputs[0], shown), reason,
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
  Object.assign(session, { explained: null, tree: null }); // those of another hypothesis, or segment
  try {
    if (!(await explainOutput())) return; // another was chosen meanwhile
    showError(null);
  } catch (error) {
    if (error.name === "AbortError" || session.answer !== answer) return;
    showError(error);
  }
  drawResult(done);
}

export function showError(error) {
  const place = find("#error");
  place.hidden = error === null;
  place.textContent = error === null ? "" : sentenceOf(error);
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
