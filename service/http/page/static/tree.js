// The search as a tree: a column for each step, its candidates best first.

import { fill, h, number, percent, rove, svg } from "./dom.js";
import { request } from "./api.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { explainedSource, options } from "./requests.js";
import { state, update } from "./state.js";
import { nameOf } from "./text.js";

const COLUMN = 92;
const ROW = 42;
const BOX = { width: 66, height: 32 };
/** @type {number | undefined} */
let timer;

export async function tree(panel, signal) {
  stopPlaying();
  if (!session.answer) return fill(panel, h("p", { class: "faint" }, t("noAnswer")));
  if (state.mode === "sample") return fill(panel, h("p", { class: "faint" }, t("noTree")));
  const { answer } = session;
  const found = session.tree ?? (await request("/v1/explain", treeBody(), signal)).tree;
  if (session.answer !== answer) return null; // another search was begun meanwhile
  session.tree = found;
  const steps = found ?? [];
  const detail = h("p", { class: "detail", role: "status" }, " ");
  const picture = draw(steps, detail);
  const scroll = h("div", { class: "scroll" }, picture);
  fill(panel, stepper(steps.length, picture, scroll), legend(picture.querySelector(".extra") !== null), scroll, detail);
  showUpTo(picture, upTo(steps.length));
  scroll.scrollLeft = Math.max(0, (upTo(steps.length) + 1) * COLUMN - scroll.clientWidth);
  return null;
}

export const treeBody = () => ({ source: explainedSource(), ...options(), attention: [], alternatives: 0 });

const stepName = (step, count) => `${t("step", { n: step, all: count })}${step >= count ? ` · ${t("searchEnded")}` : ""}`;

const upTo = (count) => Math.min(state.step ?? count, count);

function stepper(count, picture, scroll) {
  const { answer } = session;
  const label = h("output", {}, "");
  const slider = h("input", { type: "range", min: 1, max: count, step: 1, value: upTo(count), "aria-label": t("tab_beam") });
  const show = (step) => {
    slider.value = step;
    label.textContent = stepName(step, count);
    showUpTo(picture, step);
    scroll.scrollLeft = Math.max(0, (step + 1) * COLUMN - scroll.clientWidth);
  };
  const move = (step) => {
    update({ step: step >= count ? null : step });
    show(step);
  };
  slider.addEventListener("input", () => move(Number(slider.value)));
  const play = h("button", { type: "button" }, t("play"));
  play.addEventListener("click", () => {
    if (stopPlaying(play)) return;
    let step = Number(slider.value) >= count ? 0 : Number(slider.value);
    play.textContent = t("pause");
    const next = () => {
      const isGone = !play.isConnected || session.answer !== answer;
      if (!isGone) move((step += 1));
      if (isGone || step >= count) stopPlaying(play);
    };
    timer = setInterval(next, 700);
    next();
  });
  label.textContent = stepName(upTo(count), count);
  return h("div", { class: "options stepper" }, play, slider, label);
}

function stopPlaying(/** @type {HTMLElement | null} */ play = null) {
  const was = timer !== undefined;
  clearInterval(timer);
  timer = undefined;
  if (play) play.textContent = t("play");
  return was;
}

/** Nodes of the answered hypotheses' paths, the first one's apart. */
function paths(steps) {
  const byNode = new Map(steps.flat().map((node) => [node.node, node]));
  const best = new Set();
  for (const node of byNode.values()) {
    if (node.hypothesis === 0) for (let at = node; at; at = byNode.get(at.parent)) best.add(at.node);
  }
  return { byNode, best };
}

function draw(steps, detail) {
  const { best } = paths(steps);
  const places = new Map([[0, { x: 8, y: 0 }]]);
  const most = Math.max(1, ...steps.map((nodes) => nodes.length));
  const edges = svg("g", {});
  const nodes = svg("g", {});
  steps.forEach((candidates, step) => {
    candidates.forEach((node, rank) => {
      const at = { x: 24 + step * COLUMN + 16, y: rank * ROW };
      places.set(node.node, at);
      const from = /** @type {{ x: number, y: number }} */ (places.get(node.parent));
      const x0 = node.parent === 0 ? from.x : from.x + BOX.width;
      const y0 = from.y + 22;
      const isExtra = (node.state === "finished" && node.hypothesis === null) || (node.state === "kept" && step === steps.length - 1); // not answered
      const kind = `${node.state}${best.has(node.node) ? " best" : ""}${isExtra ? " extra" : ""}`;
      const middle = (x0 + at.x) / 2;
      edges.append(svg("path", { class: `edge ${kind}`, "data-step": step + 1, d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${at.y + 22} ${at.x} ${at.y + 22}` }));
      nodes.append(box(node, at, kind, step + 1, detail));
    });
  });
  nodes.append(svg("circle", { class: "root", cx: 8, cy: 22, r: 5 }));
  const width = 44 + steps.length * COLUMN;
  const height = most * ROW + 8;
  const drawing = svg("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": t("treeLabel") }, edges, nodes);
  return rove(drawing, ".node:not(.later)");
}

function box(node, at, kind, step, detail) {
  const describe = () => {
    const words = { kept: "treeLegend", pruned: "treePruned", finished: "treeFinished" };
    detail.textContent = t("nodeDetail", { token: nameOf(node), state: t(words[node.state]), logprob: number(node.logprob, 3), sum: number(node.sum, 3), score: number(node.score, 3) });
  };
  const shown = Array.from(node.state === "finished" ? `■ ${number(node.score)}` : nameOf(node));
  const text = shown.length > 7 ? `${shown.slice(0, 6).join("")}…` : shown.join("");
  const p = percent(Math.exp(node.logprob));
  return svg(
    "g", { class: `node ${kind}`, "data-step": step, on: { mouseenter: describe, focus: describe } },
    svg("rect", { x: at.x, y: at.y + 6, width: BOX.width, height: BOX.height, rx: 5 }),
    svg("text", { x: at.x + BOX.width / 2, y: at.y + 20, "text-anchor": "middle" }, text),
    svg("text", { class: "chance", x: at.x + BOX.width / 2, y: at.y + 32, "text-anchor": "middle" }, p), svg("title", {}, nameOf(node)),
  );
}

function showUpTo(picture, step) {
  for (const part of picture.querySelectorAll("[data-step]")) part.classList.toggle("later", Number(part.dataset.step) > step);
  const hidden = picture.querySelector(".node.later[tabindex='0']");
  hidden?.setAttribute("tabindex", -1);
  if (hidden) picture.querySelector(".node").setAttribute("tabindex", 0);
}

function legend(hasExtra) {
  const item = (kind, word) => h("span", { class: `key ${kind}` }, t(word));
  return h("p", { class: "legend small" }, item("best", "treeBest"), item("kept", "treeLegend"), item("finished", "treeFinished"), item("pruned", "treePruned"), hasExtra ? item("extra", "treeExtra") : null);
}
