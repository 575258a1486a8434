// Posts each file to a URL, with both of Node's own clients: fetch, and http with the agent that it uses by default.
import { readFileSync } from "node:fs";
import { request } from "node:http";

const [url, ...files] = process.argv.slice(2);
const method = "POST";
const headers = { "Content-Type": "application/json" };
const show = (status, text) => console.log(`${status} ${text.replaceAll("\n", " ")}`);

function post(body) {
  return new Promise((resolve, reject) => {
    const sent = request(url, { method, headers }, async (response) => {
      let text = "";
      for await (const part of response) text += part;
      resolve([response.statusCode, text]);
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

for (const file of files) {
  const body = readFileSync(file);
  const response = await fetch(url, { method, headers, body });
  show(response.status, await response.text());
  show(...(await post(body)));
}
