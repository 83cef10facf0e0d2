// For someone who comes for the first time: what the model does, what a view shows, what its tokens mean.

import { h } from "./dom.js";
import { session } from "./generate.js";
import { language, t } from "./i18n.js";

const ARPABET = {
  AA: "odd", AE: "at", AH: "hut", AO: "ought", AW: "cow", AY: "hide", B: "be", CH: "cheese", D: "dee", DH: "thee", EH: "Ed", ER: "hurt", EY: "ate", F: "fee",
  G: "green", HH: "he", IH: "it", IY: "eat", JH: "gee", K: "key", L: "lee", M: "me", N: "knee", NG: "ping", OW: "oat", OY: "toy", P: "pee", R: "read", S: "sea",
  SH: "she", T: "tea", TH: "theta", UH: "hood", UW: "two", V: "vee", W: "we", Y: "yield", Z: "zee", ZH: "seizure",
};
const SOUND = /^([A-Z]{1,2})([012]?)$/;

/** What the model does: its bundle's own sentence, else that it is a Transformer. */
export function about() {
  const own = session.info?.description;
  return own ? own : session.info ? t("aboutAny", { name: session.info.bundle.name }) : "";
}

/** Where more is to read about a view: a section of the tutorial or of the walk, which are served beside the page. */
const SECTIONS = {
  map: "walk.html#2-the-map-two-minutes", next: "tutorial.html#ask-for-the-next-token", attention: "tutorial.html#look-at-its-attention", head: "tutorial.html#scaled-dot-product-attention",
  alignment: "tutorial.html#ask-why", beam: "tutorial.html#ask-why", whatif: "walk.html#4-switch-it-off-three-minutes", embeddings: "tutorial.html#positions", compare: "tutorial.html#the-loss",
  model: "tutorial.html#export-and-serve-it",
};

/** Two sentences about the view that is open, and where more is to read. */
export const intro = (tab) => [t(`intro_${tab}`), " ", h("a", { href: `/page/${SECTIONS[tab]}`, target: "_blank" }, t(SECTIONS[tab].startsWith("walk") ? "more_walk" : "more_tutorial"))];

/** The sounds of ARPAbet, where the output consists of them. */
export function legendOf() {
  const tokens = session.answer?.outputs[0].hypotheses[0].tokens ?? [];
  const sounds = tokens.map((token) => SOUND.exec(token)?.[1]);
  if (!sounds.length || !sounds.every((sound) => sound && Object.hasOwn(ARPABET, sound))) return [];
  const item = (sound) => h("li", {}, h("b", {}, sound), ARPABET[sound]);
  return h("details", {}, h("summary", {}, t("soundsTitle")), h("p", { class: "faint small" }, t("soundsNote")),
    h("ul", { class: "sounds", lang: "en" }, Object.keys(ARPABET).filter((sound) => sounds.includes(sound)).map(item), h("li", {}, "…")),
    h("ul", { class: "sounds", lang: "en" }, Object.keys(ARPABET).filter((sound) => !sounds.includes(sound)).map(item)));
}

/** A language's name in the page's own language, with its code; the code alone where it is no language's. */
export function languageName(code) {
  try {
    const name = new Intl.DisplayNames([language()], { type: "language", fallback: "none" }).of(code.replace(/_/g, "-"));
    return name ? `${name} (${code})` : code;
  } catch {
    return code;
  }
}
