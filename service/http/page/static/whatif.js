// What if a part were missing: heads, sub-layers, layers, residual connections or positions switched off, or a letter changed.

import { fill, h, number, percent } from "./dom.js";
import { session } from "./generate.js";
import { request } from "./api.js";
import { t } from "./i18n.js";
import { look, sizes } from "./inside.js";
import { options } from "./requests.js";
import { state, update } from "./state.js";
import { nameOf } from "./text.js";

const SUBLAYERS = { encoder: ["encoder", "encoder_feed_forward"], decoder: ["decoder", "cross", "decoder_feed_forward"] };
const IS_ATTENTION = new Set(["encoder", "decoder", "cross"]);

/** What is off, as the service takes it: the state has "head cross 0 1", "sublayer cross 0", "layer encoder 0", "residual cross 0", "positions source". */
export function ablation(off) {
  /** @type {Record<string, any[]>} */
  const found = { heads: [], sublayers: [], layers: [], residuals: [], positions: [] };
  for (const name of off) {
    const [what, of, layer, head] = name.split(" ");
    if (what === "head") found.heads.push({ kind: of, layer: Number(layer), head: Number(head) });
    else if (what === "sublayer") found.sublayers.push({ kind: of, layer: Number(layer) });
    else if (what === "layer") found.layers.push({ stack: of, layer: Number(layer) });
    else if (what === "residual") found.residuals.push({ kind: of, layer: Number(layer) });
    else if (what === "positions") found.positions.push(of);
  }
  return found;
}

export const whatIfWanted = () => ({ attention: [], include: ["structure"], alternatives: 8, encoding: "json", ablate: ablation(state.off) });

export async function whatIf(panel, signal) {
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  const isOther = state.source2 !== "" && state.source2 !== state.source;
  const [found, other] = await Promise.all([
    look(whatIfWanted(), signal),
    isOther ? request("/v1/explain", { source: state.source2, ...options(), attention: [], alternatives: 8 }, signal) : null,
  ]);
  const results = h("div", { class: "results" }, sideBySide(found));
  fill(panel, letters(), isOther ? changed(found, other) : null,
    h("div", { class: "workbench" }, h("div", {}, h("h3", {}, t("switchOff")), switches(found)), state.off.length ? outcome(found) : null, results));
  return null;
}

/** Another source: a letter changed. */
function letters() {
  const input = h("input", { type: "text", name: "source2", dir: "auto", spellcheck: false, value: state.source2 || state.source, "aria-label": t("changeLetter") });
  const take = (event) => { event.preventDefault(); update({ source2: input.value === state.source ? "" : input.value }); };
  input.addEventListener("change", take);
  return h("form", { class: "options", on: { submit: take } }, h("label", { class: "field" }, h("span", { class: "label" }, t("changeLetter")), input), h("button", { type: "submit" }, t("compare")));
}

function changed(found, other) {
  const column = (each) => h("div", { class: "column" }, h("p", { class: "given", dir: "auto" }, each.source.text), steps(each.steps, each.steps), bars(each.steps[at(each.steps)]));
  return h("div", { class: "pair" }, column(found), column(other));
}

function toggle(name, text, label) {
  const isOff = state.off.includes(name);
  return h("button", {
    type: "button", class: isOff ? "toggle off" : "toggle", "aria-pressed": String(isOff), "aria-label": label, title: label,
    on: { click: () => update({ off: isOff ? state.off.filter((each) => each !== name) : [...state.off, name] }) },
  }, text);
}

/** A row for each sub-layer: its heads, itself, and the residual connection around it. */
function switches(found) {
  const { heads } = sizes();
  const rows = [];
  for (const stack of ["encoder", "decoder"]) {
    for (let layer = 0; layer < sizes()[`${stack}_layers`]; layer++) {
      SUBLAYERS[stack].forEach((kind, i) => {
        const name = t("layerOf", { stack: t(`stack_${stack}`), layer: layer + 1 });
        const part = IS_ATTENTION.has(kind) ? t(`block_${kind}`) : t("feedForward");
        const all = Array.from({ length: IS_ATTENTION.has(kind) ? heads : 0 }, (_, head) => toggle(`head ${kind} ${layer} ${head}`, String(head + 1), `${name}, ${part}, ${t("head")} ${head + 1}`));
        rows.push(h("tr", {},
          i === 0 ? h("th", { scope: "rowgroup", rowSpan: SUBLAYERS[stack].length }, toggle(`layer ${stack} ${layer}`, name, t("wholeLayer", { name }))) : null,
          h("td", {}, toggle(`sublayer ${kind} ${layer}`, part, `${name}, ${part}`)), h("td", {}, h("div", { class: "toggles" }, all)),
          h("td", {}, toggle(`residual ${kind} ${layer}`, t("residual"), `${name}, ${part}: ${t("residual")}`))));
      });
    }
  }
  const sides = found.structure?.added_positions ?? [];
  const positions = sides.map((side) => toggle(`positions ${side}`, t(`positions_${side}`), t(`positions_${side}`)));
  const none = h("button", { type: "button", disabled: !state.off.length, on: { click: () => update({ off: [] }) } }, t("allOn"));
  return [
    h("div", { class: "scroll switches" }, h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, ["layer", "part", "heads", "around"].map((name) => h("th", { scope: "col" }, t(`off_${name}`))))), h("tbody", {}, rows))),
    h("div", { class: "actions" }, positions, none),
  ];
}

const at = (steps) => Math.max(0, Math.min((state.step ?? 1) - 1, steps.length - 1));

/** The tokens of a target as buttons with their probabilities; the chosen one's distribution is shown. */
function steps(found, compared) {
  return h("div", { class: "steps" }, found.map((step, i) => {
    const loss = Math.exp(compared[i].logprob) - Math.exp(step.logprob);
    return h("button", {
      type: "button", class: i === at(found) ? "step chosen" : "step", "aria-pressed": String(i === at(found)), vars: { "--loss": Math.max(0, loss).toFixed(3) },
      on: { click: () => update({ step: i + 1 }) },
    }, h("bdi", {}, nameOf(step)), h("small", {}, percent(Math.exp(step.logprob))));
  }));
}

function bars(step) {
  return h("div", { class: "mini-bars" }, step.alternatives.map((each) => h("div", { class: each.id === step.id ? "mini-bar chosen" : "mini-bar", vars: { "--share": Math.exp(each.logprob).toFixed(3) } }, h("bdi", {}, nameOf(each)), h("span", {}, percent(Math.exp(each.logprob))))));
}

const isAsServed = ({ ablated, hypotheses, target }) => ablated.text === (hypotheses?.[0]?.text ?? target.text);

/** The answer in a line, which stays at the window's edge where the switches leave no room for the results. */
function outcome(found) {
  return h("p", { class: "outcome" }, h("span", { class: "label" }, t("without", { n: state.off.length })), h("bdi", { class: isAsServed(found) ? "" : "error" }, found.ablated.text || t("empty")));
}

function sideBySide(found) {
  const { ablated } = found;
  const sum = (steps) => steps.reduce((all, step) => all + step.logprob, 0);
  const column = (title, text, list, note) => h("div", { class: "column" }, h("h3", {}, title), h("p", { class: "tokens large", dir: "auto" }, text || t("empty")),
    h("p", { class: "faint small" }, t("sameTarget")), steps(list, found.steps), h("p", { class: "faint small" }, t("total", { sum: number(sum(list), 3), mean: number(sum(list) / list.length, 3) })), bars(list[at(list)]), note);
  const isSame = isAsServed(found);
  const note = state.off.length ? h("p", { class: isSame ? "faint" : "error" }, t(isSame ? "sameOutput" : "otherOutput")) : h("p", { class: "faint" }, t("nothingOff"));
  return h("div", { class: "pair", role: "group", "aria-label": t("sideBySide") },
    column(t("asServed"), found.target.text, found.steps, null), column(state.off.length ? t("without", { n: state.off.length }) : t("withoutNone"), ablated.text, ablated.steps, note));
}
