// Requests to the service. What goes wrong is a Failure whose message is a sentence to show.

import { t } from "./i18n.js";
import { inOwnWords } from "./refusals.js";

let key = ""; // in memory only: gone with the page
let wanted = () => {};

export class Failure extends Error {
  constructor(message, status = 0, field = null) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

export const hasKey = () => key !== "";

export function setKey(text) {
  if (/[^\x20-\x7e\xa0-\xff]/.test(text)) throw new Failure(t("keyLetters")); // no header has them
  key = text.trim();
}

/** What to show of an error. */
export const sentenceOf = (error) => (error instanceof Failure ? error.message : String(error));

/** `run` is called when the service wants a key. */
export const onKeyWanted = (run) => { wanted = run; };

/**
 * @param {string} path
 * @param {Record<string, any> | null} [body]
 * @param {AbortSignal | null} [signal]
 * @returns {Promise<any>}
 */
export async function request(path, body = null, signal = null) {
  const answer = await send(path, body, signal);
  return unbroken(path === "/metrics" ? answer.text() : answer.json());
}

/** What is read of an answer; a connection may end within it. */
async function unbroken(reading) {
  try {
    return await reading;
  } catch (error) {
    throw error.name === "AbortError" ? error : new Failure(t("broken"));
  }
}

async function send(path, body, signal) {
  /** @type {Record<string, string>} */
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Failure(t("gone", { host: location.host }));
  }
  if (answer.ok) return answer;
  throw await refusal(answer);
}

async function refusal(answer) {
  let error = {};
  try {
    const found = (await answer.json()).error;
    error = typeof found === "string" ? { message: found } : found ?? {};
  } catch { /* a proxy's own page */ }
  if (answer.status === 401) {
    wanted();
    return new Failure(t(key ? "wrongKey" : "needKey"), 401);
  }
  const again = answer.headers.get("retry-after");
  const sentence = inOwnWords(error, answer.status);
  return new Failure(again ? `${sentence} ${t("again", { seconds: again })}` : sentence, answer.status, error.field);
}

/** Server-sent events of a request, as [name, data]. */
export async function* stream(path, body, signal) {
  const answer = await send(path, { ...body, stream: true }, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  for (;;) {
    const chunk = await unbroken(reader.read());
    if (chunk.done) break;
    const blocks = (rest + chunk.value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const [name, data] = parseEvent(block);
      if (name === "error") throw new Failure(inOwnWords(data.error ?? data, 0));
      ended ||= name === "done";
      yield [name, data];
    }
  }
  if (!ended) throw new Failure(t("broken"));
}

function parseEvent(block) {
  const fields = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  return [fields.event, JSON.parse(fields.data)];
}
