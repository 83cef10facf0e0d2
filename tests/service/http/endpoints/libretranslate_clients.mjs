// What LibreTranslate's clients from npm answer, as JSON: node libretranslate_clients.mjs DIRECTORY ADDRESS KEY TEXT
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [directory, address, key, text] = process.argv.slice(2);
const require = createRequire(pathToFileURL(join(directory, "package.json")));
const { libreTranslate } = require("libretranslate-ts");
libreTranslate.setApiEndpoint(address);
libreTranslate.setApiKey(key);
const { Translate } = await import(pathToFileURL(require.resolve("translate")));

console.log(JSON.stringify({
  "libretranslate-ts": await libreTranslate.translate(text, "en", "de"),
  detected: await libreTranslate.detect(text),
  languages: await libreTranslate.listLanguages(),
  // It sends the key as apiKey, which LibreTranslate does not read.
  libretranslate: key ? null : await require("libretranslate").translate({ query: text, source: "en", target: "de", apiurl: address }),
  translate: await new Translate({ engine: "libre", url: `${address}/translate`, key })(text, { from: "en", to: "de" }),
}));
