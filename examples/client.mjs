// The service from JavaScript, in Node 18 or newer and in browsers: fetch, and a stream of server-sent events.
const url = globalThis.process?.argv[2] ?? "http://127.0.0.1:8000";

async function post(path, body) {
  const response = await fetch(url + path, { method: "POST", body: JSON.stringify(body) });
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response;
}

/** Events of a stream as {name, data}: blocks of `event: NAME` and `data: JSON`, with an empty line after each. */
async function* events(response) {
  let rest = "";
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + text).split("\n\n");
    rest = blocks.pop(); // what has not come whole yet
    for (const block of blocks) {
      const [name, data] = block.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
      yield { name, data: JSON.parse(data) };
    }
  }
}

const answer = await (await post("/v1/generate", { inputs: ["attendant", "through"], beam_size: 4 })).json();
for (const output of answer.outputs) console.log(output.hypotheses[0].text);

for await (const { name, data } of events(await post("/v1/generate", { inputs: "attendant", stream: true }))) {
  if (name === "token") console.log(data.index, data.token);
  if (name === "done") console.log(data.outputs[0].hypotheses[0].finish_reason);
  if (name === "error") throw new Error(data.error.message);
}

await post("/v1/generate", { inputs: "cat", beam_size: 0 }).catch((error) => console.log(error.message));
