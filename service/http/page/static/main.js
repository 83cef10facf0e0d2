// The page: controls, parts and the address, joined.

import { onKeyWanted, sentenceOf, setKey } from "./api.js";
import { alignment } from "./alignment.js";
import { attention } from "./attention.js";
import { compare } from "./compare.js";
import { connect, dropUnknown, isStillServed, notice, wantedModel } from "./connect.js";
import { drawOptions } from "./controls.js";
import { copyText, showCurl } from "./curl.js";
import { fill, find, h, keepFocus } from "./dom.js";
import { embeddings } from "./embeddings.js";
import { drawResult, explainChosen, generate, isRunning, session, showError, stop } from "./generate.js";
import { head } from "./head.js";
import { LANGUAGES, language, t, translate } from "./i18n.js";
import { about, intro, legendOf } from "./intro.js";
import { map } from "./map.js";
import { model } from "./model.js";
import { nextToken } from "./nexttoken.js";
import { saveHtml, savePng } from "./save.js";
import { FRESH, link, onChange, readLink, state, update } from "./state.js";
import { tree } from "./tree.js";
import { whatIf } from "./whatif.js";

const PARTS = { map, next: nextToken, attention, head, alignment, beam: tree, whatif: whatIf, embeddings, compare, model };
const RUNS = ["mode", "beam", "count", "samples", "penalty", "temperature", "topp", "seed", "model", "from", "to", "terms", "glossary", "forbid", "choices", "split", "format", "protect", "pattern"];
const REDRAWN = new Set(["head", "whatif"]); // parts that are drawn anew for another step
const AGAIN = 2000; // ms
const PAUSE = 400; // ms without a key, after which a text is answered
const DRAWN = ["lang", "theme", "tab", "model", "from", "to", "walk", "done", "kind", "layer", "head", "align", "off", "side", "column", "offset"]; // in the part that is open
let drawing = new AbortController(); // aborts what the part that is open has asked for

async function drawPart() {
  drawing.abort();
  drawing = new AbortController();
  const { signal } = drawing;
  const panel = find("#panel");
  panel.setAttribute("aria-labelledby", `tab-${state.tab}`);
  const place = h("div", {});
  fill(find("#intro"), intro(state.tab));
  fill(find("#legend"), legendOf());
  panel.append(place);
  let isKept = true;
  try {
    await PARTS[state.tab](place, signal);
  } catch (error) {
    isKept = error.name !== "AbortError";
    fill(place, h("p", { class: "error", role: "alert" }, sentenceOf(error)));
  }
  if (isKept && !signal.aborted) keepFocus(panel, () => { for (const other of [...panel.children]) if (other !== place) other.remove(); });
  else place.remove(); // what was there stays
}

function drawTabs() {
  const names = Object.keys(PARTS);
  const tabs = names.map((name) => h("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === state.tab), "aria-controls": "panel", tabIndex: name === state.tab ? 0 : -1,
    on: { click: () => update({ tab: name }, false) },
  }, t(`tab_${name}`)));
  const hadFocus = find("#tabs").contains(document.activeElement);
  fill(find("#tabs"), tabs);
  if (hadFocus) find(`#tab-${state.tab}`).focus();
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const names = Object.keys(PARTS);
  update({ tab: names[(names.indexOf(state.tab) + step + names.length) % names.length] });
  find(`#tab-${state.tab}`).focus();
}

function drawShell() {
  translate();
  document.documentElement.dataset.theme = state.theme ?? "";
  if (!state.theme) delete document.documentElement.dataset.theme;
  find("#language").textContent = LANGUAGES.find(([code]) => code !== language())?.[1] ?? null;
  find("#theme").textContent = t(isDark() ? "light" : "dark");
  drawTabs();
  drawOptions();
  const chips = (session.info?.examples ?? []).map((text) => h("button", { type: "button", class: "chip", dir: "auto", on: { click: () => ask(text) } }, text));
  fill(find("#about"), about());
  fill(find("#examples"), chips.length ? [h("span", { class: "label" }, t("examples")), chips] : []);
}

const isDark = () => (state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

function ask(text) {
  find("#source").value = text;
  update({ source: text, ...FRESH }, false);
  notice(null);
  run();
}

/** What a change of the state redraws. */
async function changed(keys) {
  const has = (...names) => names.some((name) => keys.has(name));
  if (has("lang", "theme", "tab", "mode", "model", "from", "to", "terms", "forbid", "choices", "glossary")) drawShell();
  if (has("source")) find("#source").value = state.source;
  for (const input of find("#options").querySelectorAll("input[type=number]")) if (has(input.name)) input.value = state[input.name] ?? "";
  if (has("model") && wantedModel(session.models) !== session.model && !(await reconnect())) return;
  if (has("model", "from", "to")) dropUnknown();
  if (has(...RUNS) && (session.answer || isRunning() || has("source"))) {
    session.answer = null;
    if (!has("target")) update({ target: null, step: null, segment: 0 });
    run();
  } else if (has("source")) {
    if (state.tab === "compare") generate(() => {}); // the output is of the source that is shown; else who changes it runs it
  } else if (has("target", "segment") && session.answer) explainChosen(drawPart);
  else if (has("lang") && session.answer) drawResult(drawPart);
  else if (has(...DRAWN) || (has("step") && REDRAWN.has(state.tab)) || (has("source2") && state.tab === "whatif")) drawPart();
}

async function run() {
  const asked = isStillServed(); // beside the run
  await generate(drawPart);
  if ((await asked) || !(await reconnect())) return;
  if (session.answer) drawResult(drawPart);
  else drawPart();
}

/** Whether what is served is known now. */
async function reconnect() {
  try {
    await connect();
    drawShell();
    return true;
  } catch (error) {
    Object.assign(session, { model: state.model ?? session.model, info: null }); // the next run learns it
    showError(error);
    return false;
  }
}

async function start() {
  showError(null);
  try {
    await connect();
    find("#key-form").hidden = true;
    drawShell();
    if (state.source) await run();
    else await first();
  } catch (error) {
    showError(error);
    if (error.status === 503) setTimeout(start, AGAIN); // the model is still being loaded
  }
}

/** A first visit: the model's first example, so that there is something to see. It is not in the address. */
async function first() {
  const [example] = session.info?.examples ?? [];
  const source = find("#source");
  if (!example || source.value) return drawPart(); // or someone types already
  source.value = example;
  source.addEventListener("focus", () => { if (source.value === example) source.select(); }, { once: true }); // typing replaces it
  Object.assign(state, { source: example });
  return run();
}

function say(text) {
  find("#said").textContent = text;
  setTimeout(() => { find("#said").textContent = ""; }, 2500);
}

const saved = (run) => () => run().catch((error) => say(error.message));

find("#ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(find("#source").value);
});
find("#stop").addEventListener("click", stop);
find("#source").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return; // 229: Safari ends a composition with it
  event.preventDefault();
  ask(find("#source").value);
});
let typing; // the timer of a text that is still being typed
find("#source").addEventListener("input", () => {
  clearTimeout(typing);
  if (!find("#live").checked) return;
  typing = setTimeout(() => { if (find("#source").value !== state.source) ask(find("#source").value); }, PAUSE);
});
find("#copy").addEventListener("click", async () => { if (await copyText(session.answer?.outputs[0].hypotheses[0].text ?? "")) say(t("copied")); });
find("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  try {
    setKey(find("#key").value);
    start();
  } catch (error) {
    showError(error);
  }
  find("#key").value = "";
});
onKeyWanted(() => { find("#key-form").hidden = false; find("#key").focus(); });
find(".skip").addEventListener("click", (event) => { event.preventDefault(); find("#output").focus(); }); // the address holds the state
find("#tabs").addEventListener("keydown", moveTab);
find("#language").addEventListener("click", () => update({ lang: language() === "zh" ? "en" : "zh" }));
find("#theme").addEventListener("click", () => update({ theme: isDark() ? "light" : "dark" }));
find("#link").addEventListener("click", async () => { if (await copyText(link())) say(t("copied")); });
find("#curl").addEventListener("click", showCurl);
find("#save-html").addEventListener("click", saved(saveHtml));
find("#save-png").addEventListener("click", saved(savePng));
window.addEventListener("popstate", () => {
  const before = { ...state };
  readLink();
  if (state.source !== before.source && RUNS.every((key) => state[key] === before[key])) run(); // else it runs by that
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawShell(); drawPart(); });

readLink();
find("#source").value = state.source;
drawShell();
onChange(changed);
start();
