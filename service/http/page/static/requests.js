// The requests behind what is shown: what is searched for, and what of it is explained.

import { segmentSource } from "./answer.js";
import { session } from "./generate.js";
import { state } from "./state.js";
import { AUTO, isSplit, phraseFields, textFields } from "./terms.js";

/** The options of the search, as the service takes them. @returns {Record<string, any>} */
export function options() {
  const found = { ...where() };
  if (state.mode === "greedy") found.beam_size = 1; // the model's own default may be more
  if (state.mode === "beam") Object.assign(found, { beam_size: state.beam, length_penalty: state.penalty });
  if (state.mode === "sample") {
    Object.assign(found, { temperature: state.temperature, seed: state.seed });
    if (state.topp < 1) found.top_p = state.topp;
  }
  if (hypotheses() > 1) found.num_hypotheses = hypotheses();
  return Object.assign(found, phraseFields());
}

/** Of a text that is split there is one. */
export const hypotheses = () => (isSplit() ? 1 : { greedy: 1, beam: Math.min(state.count, state.beam), sample: state.samples }[state.mode]);

/** The model and its languages, where they are chosen or were detected. */
export function where() {
  /** @type {Record<string, any>} */
  const found = {};
  const detected = session.answer?.outputs[0].detected_language?.language;
  const from = detected && (!state.from || state.from === AUTO) ? detected : state.from;
  if (session.model) found.model = session.model;
  if (from) found.source_language = from;
  if (state.to) found.target_language = state.to;
  return found;
}

export const generateBody = () => ({ inputs: state.source, ...options(), ...textFields(), logprobs: true });

/** A text that was split, of whose segments one is explained; null: it was not. */
export const segmented = () => {
  const found = session.answer?.outputs[0].hypotheses[0];
  return isSplit() && found?.segments?.length ? found : null;
};

/** What the views explain: the source, or the segment of it that is chosen. */
export function explainedSource() {
  const found = segmented();
  return found ? segmentSource(found) : state.source;
}

/** The tokens of it that come first, and their log-probabilities; those of a segment come with its explanation. */
export function explainedTokens() {
  const found = segmented() ? session.explained?.hypotheses?.[0] : session.answer?.outputs[0].hypotheses[0];
  return { tokens: found?.tokens ?? [], logprobs: found?.logprobs ?? session.explained?.steps.map((step) => step.logprob) ?? [] };
}

export function explainBody(more = {}) {
  const search = state.target && !segmented() ? { ...where(), target_tokens: state.target } : options();
  return { source: explainedSource(), ...search, ...more };
}
