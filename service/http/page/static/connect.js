// What is served: the models, the one that is asked, and what is known of it.

import { request } from "./api.js";
import { find } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { state, update } from "./state.js";
import { AUTO } from "./terms.js";
import { setSpecial } from "./text.js";

/** @type {Promise<null> | null} */
let newest = null; // what learns it: an older one's answer is not taken

/** The name to ask by: that of the link, or the default one; null: there is only one. */
export function wantedModel(models) {
  if (models.some(({ id }) => id === state.model)) return state.model;
  return models.length > 1 ? (models.find((each) => each.default) ?? models[0]).id : null;
}

/** Learn what is served. */
export function connect() {
  const learning = learn(() => newest !== learning);
  newest = learning;
  return learning;
}

/** @returns {Promise<null>} */
async function learn(isOld) {
  const models = (await request("/v1/models")).data;
  const name = wantedModel(models);
  const info = await loadedInfo(name, models);
  if (isOld()) return newest; // another model was chosen meanwhile
  Object.assign(session, { models, model: name, info });
  find("#model-name").hidden = info === null;
  if (info !== null) {
    setSpecial(info.bundle.special_ids);
    find("#model-name").textContent = `${info.model} · ${info.precision} · ${info.provider}`;
  }
  dropUnknown();
  return null;
}

/** What is known of a model; null: it is one of several and not loaded, which a request for an answer changes. */
async function loadedInfo(name, models) {
  try {
    return await request(name ? `/v1/info?model=${encodeURIComponent(name)}` : "/v1/info");
  } catch (error) {
    if (error.status !== 503 || models.length < 2) throw error;
    return null;
  }
}

/** Of the model, which the list of models has before it is loaded. */
export const languages = () => session.info?.languages ?? session.models.find(({ id }) => id === session.model)?.languages ?? { source: [], target: [] };

/** A model or a language of a link that is not here is dropped, and said. */
export function dropUnknown() {
  if (!session.models.length) return; // nothing is known yet
  const codes = languages();
  const known = { model: session.models.map(({ id }) => id), from: codes.source.length ? [...codes.source, AUTO] : [], to: codes.target };
  const unknown = Object.keys(known).filter((key) => state[key] && !known[key].includes(state[key]));
  if (!unknown.length) return;
  notice(t("unknownChoice", { names: unknown.map((key) => state[key]).join(", ") }));
  update(Object.fromEntries(unknown.map((key) => [key, null])));
}

export function notice(sentence) {
  find("#notice").hidden = sentence === null;
  find("#notice").textContent = sentence ?? "";
}

/** Whether the model is what it was: it may have been loaded, or reloaded, since. */
export async function isStillServed() {
  const { info, model: name, models } = session;
  if (info === null) return false;
  try {
    return JSON.stringify(await loadedInfo(name, models)) === JSON.stringify(info);
  } catch {
    return true; // the run says what is wrong
  }
}
