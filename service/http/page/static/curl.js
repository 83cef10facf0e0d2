// The request behind what is shown, as a command to copy.

import { hasKey } from "./api.js";
import { find, fill, h } from "./dom.js";
import { compareBody } from "./compare.js";
import { mapWanted, session, stepsWanted } from "./generate.js";
import { t } from "./i18n.js";
import { nextBody } from "./nexttoken.js";
import { explainBody, generateBody } from "./requests.js";
import { state } from "./state.js";
import { whatIfWanted } from "./whatif.js";
import { treeBody } from "./tree.js";

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const infoPath = () => (session.model ? `/v1/info?model=${encodeURIComponent(session.model)}` : "/v1/info");

function command(path, body) {
  const key = hasKey() ? ' -H "Authorization: Bearer $ATTENDANT_KEY"' : "";
  const address = `${location.origin}${path}`;
  return `curl ${path.includes("?") ? quote(address) : address}${key}${body ? ` -d ${quote(JSON.stringify(body))}` : ""}`;
}

/** Of the output, and of the part that is open. */
export function commands() {
  const found = [command("/v1/generate", generateBody())];
  if (state.tab === "next") found.push(command("/v1/next-token", nextBody()));
  if (state.tab === "attention") found.push(command("/v1/explain", explainBody(mapWanted())));
  if (state.tab === "alignment") found.push(command("/v1/explain", explainBody(stepsWanted())));
  if (state.tab === "beam") found.push(command("/v1/explain", treeBody()));
  if (state.tab === "compare") {
    found.push(command("/v1/explain", compareBody(state.source, state.given)), command("/v1/explain", compareBody(state.source2 || state.source, state.given2)));
  }
  if (state.tab === "map" || state.tab === "head") found.push(command("/v1/explain", explainBody({ attention: ["encoder", "decoder", "cross"], include: ["structure", "qkv", "scores", "sums", "residual"] })));
  if (state.tab === "whatif") found.push(command("/v1/explain", explainBody(whatIfWanted())));
  if (state.tab === "embeddings") found.push(command("/v1/explain", explainBody({ attention: [], include: ["embeddings", "positions", "neighbours", "plane"] })));
  if (state.tab === "model") found.push(command(infoPath(), null), command("/metrics", null));
  return found;
}

export function showCurl() {
  const dialog = find("#dialog");
  const rows = commands().map((text) => {
    const copy = h("button", { type: "button", on: { click: async () => { copy.textContent = t(await copyText(text) ? "copied" : "copy"); } } }, t("copy"));
    return h("div", { class: "command" }, h("pre", { tabIndex: 0 }, text), copy);
  });
  fill(dialog, h("h2", {}, "curl"), rows, h("div", { class: "actions" }, h("button", { type: "button", on: { click: () => dialog.close() } }, t("close"))));
  dialog.showModal();
}

/** Browsers give the clipboard only to secure pages; elsewhere a selection is copied. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "unseen", value: text });
    (find("dialog[open]") ?? document.body).append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}
