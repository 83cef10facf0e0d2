// The page: controls, parts and the address, joined.

import { Failure, onKeyWanted, request, setKey } from "./api.js";
import { alignment } from "./alignment.js";
import { attention } from "./attention.js";
import { compare } from "./compare.js";
import { copyText, showCurl } from "./curl.js";
import { field, fill, find, h, keepFocus, select } from "./dom.js";
import { drawResult, explainChosen, generate, isRunning, session, showError, stop } from "./generate.js";
import { LANGUAGES, language, t, translate } from "./i18n.js";
import { model } from "./model.js";
import { nextToken } from "./nexttoken.js";
import { saveHtml, savePng } from "./save.js";
import { onChange, readLink, state, update } from "./state.js";
import { setSpecial } from "./text.js";
import { tree } from "./tree.js";

const PARTS = { next: nextToken, attention, alignment, beam: tree, compare, model };
const RUNS = ["mode", "beam", "count", "samples", "penalty", "temperature", "topp", "seed", "model", "from", "to"];
const AGAIN = 2000; // ms
let examples = [];
let turns = 0;

async function drawPart() {
  const panel = find("#panel");
  const tab = state.tab in PARTS ? state.tab : "next";
  panel.setAttribute("aria-labelledby", `tab-${tab}`);
  const place = h("div", {});
  const turn = (turns += 1);
  panel.append(place);
  try {
    await PARTS[tab](place);
  } catch (error) {
    if (error.name !== "AbortError") fill(place, h("p", { class: "error", role: "alert" }, error instanceof Failure ? error.message : String(error)));
  }
  if (turn === turns) keepFocus(panel, () => { for (const other of [...panel.children]) if (other !== place) other.remove(); });
  else place.remove(); // another part was opened meanwhile
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

function drawOptions() {
  const set = (key, change = Number) => (event) => update({ [key]: event.target.value === "" ? null : change(event.target.value) });
  const amount = (key, label, min, max, step) => field(t(label), h("input", { type: "number", name: key, min, max, step, value: state[key] ?? "", placeholder: t("anySeed"), on: { change: set(key) } }));
  const modes = h("div", { class: "segments", role: "radiogroup", "aria-label": t("mode") }, ["greedy", "beam", "sample"].map((mode) => h("label", {}, h("input", { type: "radio", name: "mode", value: mode, checked: state.mode === mode, on: { change: () => update({ mode }) } }), h("span", {}, t(mode)))));
  const byMode = {
    greedy: [],
    beam: [amount("beam", "beamSize", 1, 32, 1), amount("count", "count", 1, 32, 1), amount("penalty", "penalty", 0, 10, 0.1)],
    sample: [amount("temperature", "temperature", 0.1, 5, 0.1), amount("topp", "topp", 0.05, 1, 0.05), amount("samples", "samples", 1, 32, 1), amount("seed", "seed", 0, null, 1)],
  };
  keepFocus(find("#options"), () => fill(find("#options"), field(t("mode"), modes), byMode[state.mode] ?? [], choices()));
}

/** The model and its languages, where there is a choice. */
function choices() {
  const found = [];
  const codes = session.info?.languages ?? { source: [], target: [] };
  const pick = (key, list, byDefault) => field(t(key), select([["", byDefault ?? "–"], ...list.map((code) => [code, code])], state[key] ?? "", (value) => update({ [key]: value || null })));
  if (session.models?.length > 1) found.push(field(t("model"), select(session.models.map(({ id }) => [id, id]), state.model ?? session.info?.model, (id) => update({ model: id, from: null, to: null }))));
  if (codes.source.length) found.push(pick("from", codes.source, codes.default_source));
  if (codes.target.length) found.push(pick("to", codes.target, codes.default_target));
  return found;
}

function drawShell() {
  translate();
  document.documentElement.dataset.theme = state.theme ?? "";
  if (!state.theme) delete document.documentElement.dataset.theme;
  find("#language").textContent = LANGUAGES.find(([code]) => code !== language())[1];
  find("#theme").textContent = t(isDark() ? "light" : "dark");
  const isChosen = state.tab in PARTS;
  if (!isChosen) update({ tab: "next" });
  drawTabs();
  drawOptions();
  const chips = examples.map((text) => h("button", { type: "button", class: "chip", dir: "auto", on: { click: () => ask(text) } }, text));
  fill(find("#examples"), chips.length ? [h("span", { class: "label" }, t("examples")), chips] : []);
  if (!session.answer && find("#error").hidden) fill(find("#result"), h("p", { class: "faint" }, t("nothing")));
}

const isDark = () => (state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

const fresh = { target: null, walk: [], done: 0, step: null };

function ask(text) {
  find("#source").value = text;
  update({ source: text, ...fresh }, false);
  run();
}

/** What a change of the state redraws. */
async function changed(keys) {
  const has = (...names) => names.some((name) => keys.has(name));
  if (has("lang", "theme", "tab", "mode", "model", "from", "to")) drawShell();
  if (has("source")) find("#source").value = state.source;
  const seed = find("#options [name=seed]");
  if (has("seed") && seed) seed.value = state.seed ?? "";
  if (has("model")) await reconnect();
  if (RUNS.some((key) => keys.has(key)) && (session.answer || isRunning())) {
    session.answer = null;
    update({ target: null, step: null });
    run();
  } else if (has("target") && !has("source") && session.answer) {
    explainChosen(drawPart);
  } else if (has("source") && state.tab === "compare") {
    generate(() => {}); // the output is of the source that is shown
  } else if (has("lang")) {
    if (session.answer) drawResult(drawPart);
    else drawPart();
  } else if (has("tab", "walk", "done", "kind", "layer", "head", "align", "theme")) drawPart();
}

async function connect() {
  session.models = (await request("/v1/models")).data;
  const first = session.models.find((each) => each.default) ?? session.models[0];
  session.model = state.model ?? (session.models.length > 1 ? first.id : null);
  session.info = await loadedInfo();
  examples = session.info?.examples ?? [];
  find("#model-name").hidden = session.info === null;
  if (session.info === null) return;
  setSpecial(session.info.bundle.special_ids);
  find("#model-name").textContent = `${session.info.model} · ${session.info.precision} · ${session.info.provider}`;
}

/** What is known of the model; null: it is one of several and not loaded, which a request for an answer changes. */
async function loadedInfo() {
  try {
    return await request(session.model ? `/v1/info?model=${encodeURIComponent(session.model)}` : "/v1/info");
  } catch (error) {
    if (error.status !== 503 || session.models.length < 2) throw error;
    return null;
  }
}

async function run() {
  await generate(drawPart);
  if (session.info !== null) return;
  await reconnect(); // the request has loaded the model
  if (session.answer) drawResult(drawPart);
}

async function reconnect() {
  try {
    await connect();
    drawShell();
  } catch (error) {
    showError(error);
  }
}

async function start() {
  showError(null);
  try {
    await connect();
    find("#key-form").hidden = true;
    drawShell();
    if (state.source) await run();
    else await drawPart();
  } catch (error) {
    showError(error);
    if (error.status === 503) setTimeout(start, AGAIN); // the model is still being loaded
  }
}

function say(text) {
  find("#said").textContent = text;
  setTimeout(() => { find("#said").textContent = ""; }, 2500);
}

const saved = (run) => () => run().catch((error) => say(error.message));

find("#ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!stop()) ask(find("#source").value);
});
find("#source").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask(find("#source").value);
});
find("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(find("#key").value);
  find("#key").value = "";
  start();
});
onKeyWanted(() => { find("#key-form").hidden = false; find("#key").focus(); });
find(".skip").addEventListener("click", (event) => { event.preventDefault(); find("#output").focus(); }); // the address holds the state
find("#tabs").addEventListener("keydown", moveTab);
find("#language").addEventListener("click", () => update({ lang: language() === "zh" ? "en" : "zh" }));
find("#theme").addEventListener("click", () => update({ theme: isDark() ? "light" : "dark" }));
find("#link").addEventListener("click", async () => { if (await copyText(location.href)) say(t("copied")); });
find("#curl").addEventListener("click", showCurl);
find("#save-html").addEventListener("click", saved(saveHtml));
find("#save-png").addEventListener("click", saved(savePng));
window.addEventListener("popstate", () => {
  const before = state.source;
  readLink();
  if (state.source !== before) run();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawShell(); drawPart(); });

readLink();
find("#source").value = state.source;
drawShell();
onChange(changed);
start();
