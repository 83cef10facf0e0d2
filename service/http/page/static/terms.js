// What must and must not come, and whole texts: the form for it, and the fields of a request.

import { field, h, select } from "./dom.js";
import { t } from "./i18n.js";
import { state, update } from "./state.js";

export const AUTO = "auto"; // a source language that is to be detected
const KINDS = ["placeholders", "urls", "emails"]; // what is protected
const PHRASES = ["terms", "forbid", "choices"];
let isOpen = false; // the form, whatever is drawn anew

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** A term for each line: "Haus", one of several forms "Haus | Hauses", or for a phrase of the source "house = Haus". */
export function termsOf(text) {
  return lines(text).map((line) => {
    const at = line.indexOf("=");
    const target = line.slice(at + 1).split("|").map((form) => form.trim()).filter(Boolean);
    return at < 0 ? { target } : { source: line.slice(0, at).trim(), target };
  });
}

/** The fields of a request for what must and must not come; none where nothing was typed. */
export function phraseFields() {
  /** @type {Record<string, any>} */
  const found = {};
  if (lines(state.terms).length) found.terms = termsOf(state.terms);
  if (state.glossary) found.glossary = state.glossary;
  if (lines(state.forbid).length) found.forbid = lines(state.forbid);
  if (lines(state.choices).length) found.choices = lines(state.choices);
  return found;
}

/** Those that the next token obeys. */
export function allowedFields() {
  const { forbid, choices } = phraseFields();
  return { ...(forbid ? { forbid } : {}), ...(choices ? { choices } : {}) };
}

/** The fields of a request for whole texts; none: the text is decoded as it is. */
export function textFields() {
  /** @type {Record<string, any>} */
  const found = {};
  if (state.split !== "none") found.split = state.split;
  if (state.format !== "text") found.format = state.format;
  if (state.protect.length) found.protect = state.protect;
  if (state.pattern) found.protect_pattern = state.pattern;
  return found;
}

export const isSplit = () => Object.keys(textFields()).length > 0;

const wantsTerms = () => Object.keys(phraseFields()).some((name) => name === "terms" || name === "glossary");

/** What was chosen; terms want a beam. */
function take(changes) {
  const before = wantsTerms();
  const isBeam = (changes.terms ?? "").trim() !== "" || Boolean(changes.glossary);
  update(isBeam && !before && state.mode !== "beam" ? { ...changes, mode: "beam" } : changes);
}

function phrases(name) {
  const isShut = name === "choices" ? wantsTerms() || state.forbid.trim() !== "" : state.choices.trim() !== "";
  return field(t(`${name}_label`), h("textarea", {
    name, rows: 2, dir: "auto", spellcheck: false, class: "phrases", value: state[name], placeholder: t(`${name}_hint`), disabled: isShut && !state[name].trim(),
    on: { change: (event) => take({ [name]: event.target.value }) },
  }));
}

function check(label, checked, onChange) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", checked, on: { change: (event) => onChange(event.target.checked) } }), h("span", {}, label));
}

function protects() {
  const toggle = (kind) => (isOn) => update({ protect: KINDS.filter((each) => (each === kind ? isOn : state.protect.includes(each))) });
  return h("div", { class: "field", role: "group", "aria-labelledby": "protect-name" }, h("span", { class: "label", id: "protect-name" }, t("protect_label")),
    h("div", { class: "checks" }, KINDS.map((kind) => check(t(`protect_${kind}`, { name: "{name}" }), state.protect.includes(kind), toggle(kind)))));
}

/** The form, which opens by a click or because something in it was chosen. */
export function demands(/** @type {Record<string, number>} */ glossaries) {
  const names = Object.keys(glossaries);
  const glossary = names.length ? field(t("glossary"), select([["", "–"], ...names.map((name) => [name, `${name} (${glossaries[name]})`])], state.glossary ?? "", (name) => take({ glossary: name || null }))) : null;
  const split = field(t("split"), select(["none", "lines", "sentences"].map((each) => [each, t(`split_${each}`)]), state.split, (value) => update({ split: value })));
  const pattern = field(t("pattern"), h("input", { type: "text", name: "pattern", dir: "ltr", spellcheck: false, value: state.pattern, placeholder: "[A-Z]{2}-\\d+", on: { change: (event) => update({ pattern: event.target.value }) } }));
  const isUsed = Object.keys(phraseFields()).length > 0 || isSplit();
  const box = h("details", { class: "demands", open: isOpen || isUsed, on: { toggle: () => { isOpen = box.open; } } }, h("summary", {}, t("demands")),
    h("div", { class: "options phrase-fields" }, PHRASES.map(phrases), glossary),
    h("div", { class: "options" }, split, check(t("html"), state.format === "html", (isOn) => update({ format: isOn ? "html" : "text" })), protects(), pattern));
  return box;
}
