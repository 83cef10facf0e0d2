// What is shown, as the part of the address after `#`: every state has a link.

/** @type {State} */
export const DEFAULTS = {
  source: "", mode: "greedy", beam: 4, count: 4, samples: 1, penalty: 1, temperature: 1, topp: 1, seed: null,
  model: null, from: null, to: null, // the model and its languages
  terms: "", glossary: null, forbid: "", choices: "", // what must and must not come, a line each
  split: "none", format: "text", protect: [], pattern: "", // whole texts
  segment: 0, // of a text that was split: the one that is explained
  target: null, // tokens of the hypothesis that is explained; null: the first
  tab: "map",
  walk: null, done: 0, t: 1, p: 0.9, // next token: tokens so far (null: up to the least certain one), and the sliders
  kind: "cross", layer: 0, head: -1, // attention; head -1 is the mean
  align: null, step: null,
  off: [], side: "target", column: 20, offset: 3, // what is switched off; embeddings: whose positions, and which
  source2: "", given: "", given2: "", // the comparison
  lang: null, theme: null,
};

/** What a new source begins with. */
export const FRESH = { target: null, segment: 0, walk: null, done: 0, step: null, off: [] };

const WAIT = 300; // ms: browsers refuse an address that changes with every move of a slider
const listeners = [];
/** @type {number | undefined} */
let waiting; // the timer of an address that is not written yet
export const state = { ...DEFAULTS };

/** Change some of it; the address follows, and listeners are told which keys changed. */
export function update(changes, replace = true) {
  const keys = Object.keys(changes).filter((key) => !same(state[key], changes[key]));
  if (!keys.length) return;
  if (!replace && waiting !== undefined) write("replaceState"); // what Back leads to
  Object.assign(state, changes);
  if (!replace) write("pushState");
  else {
    clearTimeout(waiting);
    waiting = setTimeout(() => write("replaceState"), WAIT);
  }
  for (const listener of listeners) listener(new Set(keys));
}

function write(how) {
  clearTimeout(waiting);
  waiting = undefined;
  try {
    history[how](null, "", link());
  } catch { /* too often for this browser, or too long: the next change writes it */ }
}

export const onChange = (listener) => listeners.push(listener);

/** The address of the state, without what is as by default. */
export function link() {
  const parts = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (!same(value, DEFAULTS[key])) parts.set(key, typeof value === "string" ? value : JSON.stringify(value));
  }
  return `${location.origin}${location.pathname}#${parts}`;
}

/** Read the address; what cannot be read is as by default. */
export function readLink() {
  clearTimeout(waiting); // it was that of another entry of the history
  waiting = undefined;
  const parts = new URLSearchParams(location.hash.slice(1));
  const found = {};
  for (const [key, value] of Object.entries(DEFAULTS)) found[key] = parts.has(key) ? parse(key, parts.get(key)) : value;
  update(found);
}

const CHOICES = {
  mode: ["greedy", "beam", "sample"], tab: ["map", "next", "attention", "head", "alignment", "beam", "whatif", "embeddings", "compare", "model"], side: ["source", "target"],
  kind: ["cross", "encoder", "decoder"], align: ["argmax", "mutual"], lang: ["en", "zh"], theme: ["light", "dark"],
  split: ["none", "lines", "sentences"], format: ["text", "html"],
};
const TEXTS = new Set(["source", "source2", "given", "given2", "model", "from", "to", "terms", "glossary", "forbid", "choices", "pattern"]);
const TOKENS = new Set(["walk", "target", "off", "protect"]);

function parse(key, text) {
  if (TEXTS.has(key)) return text;
  if (Object.hasOwn(CHOICES, key)) return CHOICES[key].includes(text) ? text : DEFAULTS[key];
  try {
    const value = JSON.parse(text);
    const isRight = TOKENS.has(key)
      ? Array.isArray(value) && value.every((token) => typeof token === "string")
      : Number.isFinite(value);
    return isRight ? value : DEFAULTS[key];
  } catch {
    return DEFAULTS[key];
  }
}

const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);
