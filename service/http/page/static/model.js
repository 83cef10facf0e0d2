// What the model is, what computes it, and what the service does right now.

import { request, sentenceOf } from "./api.js";
import { fill, h, number, svg } from "./dom.js";
import { session } from "./generate.js";
import { t } from "./i18n.js";
import { look } from "./inside.js";
import { positions, POSITIONS } from "./positions.js";

const EVERY = 2000; // ms between two looks at the metrics
const KEPT = 60; // looks that the lines show
let looks = []; // the lines go on when the part is drawn anew

export async function model(panel, signal) {
  const { info } = session;
  if (!info) return null;
  const { bundle, certificate } = info;
  const live = h("div", { class: "live" });
  const own = h("div", { class: "own-positions" });
  fill(
    panel,
    h("div", { class: "cards" },
      h("div", {}, h("h3", {}, t("sizes")), table(Object.entries({ ...bundle.sizes, head_size: bundle.sizes.head_size || bundle.sizes.d_model / bundle.sizes.heads }).map(([key, value]) => [t(key), value.toLocaleString("en")]))),
      h("div", {}, h("h3", {}, t("serving")), table(served(info)), h("h3", {}, t("certificate")), h("p", {}, t("holds", { ...certificate, drift: number(certificate.drift, 4) })))),
    h("h3", {}, t("live")), live,
    own,
  );
  drawPositions(own, signal);
  if (performance.now() - looks.at(-1)?.at > 3 * EVERY) looks = [];
  watch(live, signal);
  return null;
}

const served = (info) => [
  [t("model"), info.bundle.name], [t("precision"), info.precision], [t("provider"), info.provider], [t("threads"), info.threads], [t("lanes"), info.lanes], [t("version"), info.version],
];

const table = (rows) => h("table", { class: "plain" }, h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, String(value))))));

/** The model's own positions, once there is a text to explain; where nothing can be explained they are left out. */
async function drawPositions(place, signal) {
  if (!session.answer) return;
  try {
    fill(place, h("h3", {}, t("positions")), positions(await look({ include: POSITIONS, encoding: "json" }, signal), false));
  } catch { /* the rest is there */ }
}

/** Sums of the metrics over models and endpoints that compute. */
export function read(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const parts = /^(attendant_\w+)(\{.*\})? (\S+)$/.exec(line);
    if (!parts) continue;
    const isOther = parts[1].startsWith("attendant_request_seconds") && !/endpoint="\/v[12]\/(generate|next-token|score|explain|completions|chat|models\/\{name\}\/infer)/.test(parts[2]);
    if (!isOther) found[parts[1]] = (found[parts[1]] ?? 0) + Number(parts[3]);
  }
  return found;
}

/** Until another part is drawn. */
async function watch(live, signal) {
  try {
    looks.push({ at: performance.now(), ...read(await request("/metrics", null, signal)) });
    if (looks.length > KEPT) looks.shift();
    fill(live, measures().map(([name, values, digits]) => tile(name, values, digits)));
  } catch (error) {
    if (error.name !== "AbortError") fill(live, h("p", { class: "error" }, sentenceOf(error)));
  }
  if (!signal.aborted) setTimeout(() => watch(live, signal), EVERY);
}

function measures() {
  const rate = (name) => looks.slice(1).map((look, i) => (1000 * (look[name] - looks[i][name])) / (look.at - looks[i].at));
  const count = "attendant_request_seconds_count";
  const mean = looks.slice(1).map((look, i) => {
    const requests = look[count] - looks[i][count];
    return requests > 0 ? (1000 * (look.attendant_request_seconds_sum - looks[i].attendant_request_seconds_sum)) / requests : 0;
  });
  return [
    [t("perSecond"), rate(count), 1], [t("tokensPerSecond"), rate("attendant_target_tokens_total"), 0], [t("latency"), mean, 1],
    [t("running"), looks.map((look) => look.attendant_requests_running), 0], [t("waiting"), looks.map((look) => look.attendant_requests_waiting), 0],
  ];
}

function tile(name, values, digits) {
  const most = Math.max(1e-9, ...values);
  const points = values.map((value, i) => `${(i * 120) / Math.max(1, KEPT - 1)},${30 - (28 * value) / most}`).join(" ");
  const line = svg("svg", { width: 120, height: 32, viewBox: "0 0 120 32", "aria-hidden": "true" }, svg("polyline", { class: "spark", points }));
  return h("div", { class: "tile" }, h("span", { class: "label" }, name), h("strong", {}, values.length ? number(values.at(-1), digits) : "…"), line);
}
