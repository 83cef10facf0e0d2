// The view that is open, as one HTML file or as a PNG.

import { css, find, h } from "./dom.js";
import { state } from "./state.js";
import { t } from "./i18n.js";

const PARTS = ["#output", "#views"];

/** A copy without controls, its canvases as pictures. */
function copy() {
  const box = h("div", { class: "saved" });
  for (const selector of PARTS) {
    const from = find(selector);
    const part = from.cloneNode(true);
    const canvases = [...from.querySelectorAll("canvas")];
    part.querySelectorAll("canvas").forEach((canvas, i) => {
      const image = h("img", { src: canvases[i].toDataURL(), alt: canvas.getAttribute("aria-label") ?? "" });
      image.style.width = `${canvases[i].clientWidth}px`;
      image.style.height = `${canvases[i].clientHeight}px`;
      canvas.replaceWith(image);
    });
    const fields = from.querySelectorAll("select, input");
    part.querySelectorAll("select, input").forEach((control, i) => {
      const value = fields[i].tagName === "SELECT" ? fields[i].selectedOptions[0]?.textContent : fields[i].value;
      control.replaceWith(h("b", {}, value ?? ""));
    });
    for (const extra of part.querySelectorAll(".foot, [hidden], #tabs button[aria-selected=false]")) extra.remove();
    box.append(part);
  }
  return box;
}

async function styles() {
  return (await fetch("/page/style.css")).text();
}

function theme() {
  return document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function download(name, blob) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const fileName = (ending) => `attendant-${state.tab}.${ending}`;

export async function saveHtml() {
  const page = document.implementation.createHTMLDocument("Attendant");
  page.documentElement.dataset.theme = theme();
  page.documentElement.lang = document.documentElement.lang;
  page.head.prepend(Object.assign(page.createElement("meta"), { httpEquiv: "Content-Security-Policy", content: "default-src 'none'; style-src 'unsafe-inline'; img-src data:" }));
  page.head.prepend(Object.assign(page.createElement("meta"), {}));
  page.head.firstChild.setAttribute("charset", "utf-8");
  page.head.append(Object.assign(page.createElement("style"), { textContent: await styles() }));
  page.body.append(page.importNode(copy(), true), Object.assign(page.createElement("p"), { className: "faint small", textContent: location.href }));
  download(fileName("html"), new Blob([`<!doctype html>\n${page.documentElement.outerHTML}`], { type: "text/html" }));
}

/** The view drawn by the browser itself: as XHTML in an SVG image. */
export async function savePng() {
  const width = Math.max(...PARTS.map((selector) => Math.max(find(selector).offsetWidth, find(selector).scrollWidth))) + 32;
  const height = PARTS.reduce((sum, selector) => sum + find(selector).offsetHeight + 16, 32);
  const box = copy();
  box.dataset.theme = theme();
  box.prepend(h("style", {}, await styles()));
  const body = new XMLSerializer().serializeToString(box);
  const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}"><foreignObject width="100%" height="100%">${body}</foreignObject></svg>`;
  const image = new Image();
  const loaded = new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new Error(t("saveFailed", { why: "SVG" })));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await loaded;
  const canvas = h("canvas", { width: width * 2, height: height * 2 });
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  context.fillStyle = css("--paper");
  context.fillRect(0, 0, width, height);
  context.drawImage(image, 0, 0);
  const blob = await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  download(fileName("png"), blob);
}
