// Elements from data. Data only ever becomes text nodes and properties, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `props` are properties, `class`, `data`, `on` (listeners), `vars` (CSS variables) or attributes. */
export function h(name, props = {}, ...children) {
  return build(document.createElement(name), props, children);
}

export function svg(name, props = {}, ...children) {
  return build(document.createElementNS(SVG, name), props, children);
}

function build(element, props, children) {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.setAttribute("class", value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "on") for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
    else if (key === "vars") for (const [name, x] of Object.entries(value)) element.style.setProperty(name, x);
    else if (key in element && !(element instanceof SVGElement)) element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export const find = (selector) => document.querySelector(selector);

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Draw anew; the control that had the focus has it again, found by its name. */
export function keepFocus(place, draw) {
  const kinds = "button, input, select";
  const name = (control) => control.getAttribute("aria-label") ?? (control.closest("label") ?? control).textContent;
  const active = document.activeElement;
  const had = active && place.contains(active) && active.matches(kinds) ? name(active) : null;
  draw();
  if (had === null || place.contains(document.activeElement)) return;
  [...place.querySelectorAll(kinds)].find((control) => name(control) === had)?.focus();
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const percent = (p) => `${(100 * p).toFixed(p >= 0.0995 ? 0 : p >= 0.001 ? 1 : 2)} %`;

export const number = (x, digits = 2) => (x === null || x === undefined ? "–" : x.toFixed(digits).replace("-", "−"));

/** One tab stop for many elements: arrow keys move among them. */
export function rove(container, selector) {
  const items = () => [...container.querySelectorAll(selector)];
  items().forEach((item, i) => item.setAttribute("tabindex", i ? -1 : 0));
  container.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = items();
    const at = all.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
    all[at].setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
  return container;
}

/** A label before a control. */
export function field(label, control, note = null) {
  return h("label", { class: "field" }, h("span", { class: "label" }, label), control, note);
}

export function select(options, value, onChange) {
  const items = options.map(([key, text]) => h("option", { value: key, selected: key === value }, text));
  return h("select", { on: { change: (event) => onChange(event.target.value) } }, items);
}
