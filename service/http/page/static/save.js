// The view that is open, as one HTML file or as a PNG.

import { css, find, h } from "./dom.js";
import { ratioWithin } from "./heatmap.js";
import { link, state } from "./state.js";
import { t } from "./i18n.js";

const PARTS = ["#output", "#views"];
const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"; // of the saved file

/** A copy without controls, its canvases as pictures. */
function copy() {
  const box = h("div", { class: "saved", data: { theme: theme() } }, h("p", { class: "given", dir: "auto" }, state.source));
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
    for (const extra of part.querySelectorAll(".foot, [hidden], #tabs button[aria-selected=false], a")) extra.remove(); // links lead nowhere in a file
    box.append(part);
  }
  return box;
}

async function styles() {
  const texts = ["style.css", "views.css"].map(async (name) => (await fetch(`/page/${name}`)).text());
  return (await Promise.all(texts)).join("\n");
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
  page.body.append(page.importNode(copy(), true), Object.assign(page.createElement("p"), { className: "faint small", textContent: link() }));
  // As text, since the policy of this page has no inline style, not even in another document.
  const head = `<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${POLICY}"><style>${await styles()}</style>`;
  const html = page.documentElement.outerHTML.replace("<head>", () => `<head>${head}`); // only the first one
  download(fileName("html"), new Blob([`<!doctype html>\n${html}`], { type: "text/html" }));
}

/** How high it is, laid out where nobody sees it. */
function measure(box, width) {
  const frame = h("div", { class: "unseen" }, box);
  box.style.width = `${width}px`;
  document.body.append(frame);
  const height = box.offsetHeight;
  frame.remove();
  return height;
}

/** The view drawn by the browser itself: as XHTML in an SVG image. */
export async function savePng() {
  const width = find("#views").offsetWidth + 40;
  const box = copy();
  const height = measure(box, width);
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
  const ratio = ratioWithin(width, height, 2);
  const canvas = h("canvas", { width: Math.floor(width * ratio), height: Math.floor(height * ratio) });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = css("--paper");
  context.fillRect(0, 0, width, height);
  context.drawImage(image, 0, 0);
  const blob = await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  download(fileName("png"), blob);
}
