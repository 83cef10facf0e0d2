// The options of the search, the model and its languages.

import { languages } from "./connect.js";
import { field, fill, find, h, keepFocus, select } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { languageName } from "./intro.js";
import { DEFAULTS, FRESH, state, update } from "./state.js";
import { AUTO, demands } from "./terms.js";

export function drawOptions() {
  const amount = (key, label, min, max, step) => field(t(label), h("input", { type: "number", name: key, min, max, step, value: state[key] ?? "", placeholder: key === "seed" ? t("anySeed") : "", on: { change: setAmount } }));
  const modes = h("div", { class: "segments", role: "radiogroup", "aria-labelledby": "mode-name" }, ["greedy", "beam", "sample"].map((mode) => h("label", {}, h("input", { type: "radio", name: "mode", value: mode, checked: state.mode === mode, on: { change: () => update({ mode }) } }), h("span", {}, t(mode)))));
  const search = h("div", { class: "field" }, h("span", { class: "label", id: "mode-name" }, t("mode")), modes);
  const { max_beam_size: widest, max_rows: rows } = session.info?.limits ?? { max_beam_size: 32, max_rows: 32 };
  const most = Math.min(widest, rows);
  const byMode = {
    greedy: [],
    beam: [amount("beam", "beamSize", 1, most, 1), amount("count", "count", 1, most, 1), amount("penalty", "penalty", 0, 10, 0.1)],
    sample: [amount("temperature", "temperature", 0.1, 5, 0.1), amount("topp", "topp", 0.05, 1, 0.05), amount("samples", "samples", 1, most, 1), amount("seed", "seed", 0, null, 1)],
  };
  keepFocus(find("#ask"), () => {
    fill(find("#options"), search, byMode[state.mode], choices());
    fill(find("#demands"), demands(session.info?.glossaries ?? {}));
  });
}

/** A number was typed; none is as by default. */
function setAmount({ target: input }) {
  update({ [input.name]: input.value === "" ? DEFAULTS[input.name] : Number(input.value) });
  input.value = state[input.name] ?? "";
}

/** The model and its languages, where there is a choice. */
function choices() {
  const found = [];
  const codes = languages();
  const pick = (key, list, byDefault, none, more = []) => field(t(key), select([["", byDefault ? languageName(byDefault) : none], ...more, ...list.filter((code) => code !== byDefault).map((code) => [code, languageName(code)])], state[key] === byDefault ? "" : state[key] ?? "", (value) => update({ [key]: value || null })));
  if (session.models.length > 1) found.push(field(t("model"), select(session.models.map(({ id }) => [id, id]), state.model ?? session.model, (id) => update({ model: id, from: null, to: null, walk: null, done: 0 }))));
  if (codes.source.length) found.push(pick("from", codes.source, codes.default_source, codes.source.length > 1 ? t("detect") : "–", codes.source.length > 1 && codes.default_source ? [[AUTO, t("detect")]] : []));
  if (codes.target.length) found.push(pick("to", codes.target, codes.default_target, "–"));
  if (codes.source.length && codes.target.length) found.push(h("button", { type: "button", class: "swap", "aria-label": t("swap"), title: t("swap"), on: { click: swap } }, "⇄"));
  return found;
}

/** The other way round: the output becomes the source. */
function swap() {
  const codes = languages();
  const detected = session.answer?.outputs[0].detected_language?.language;
  const [from, to] = [state.to ?? codes.default_target ?? null, (state.from === AUTO ? detected : state.from ?? detected) ?? codes.default_source ?? null];
  if (!from || !to || !codes.source.includes(from) || !codes.target.includes(to)) return;
  const text = session.answer?.outputs[0].hypotheses[0].text || state.source;
  find("#source").value = text;
  update({ from, to, source: text, ...FRESH }, false);
}
