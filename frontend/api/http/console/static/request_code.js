// Request code: a chat request as a command of curl and as a program in Python. The API key is a variable in both, never the key.

const KEY_VARIABLE = "TETRAD_API_KEY";
// What openai's client has arguments for; all else is Tetrad's and vLLM's own, and goes into extra_body.
const OF_OPENAI = [
  ...["model", "messages", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens", "stop"],
  ...["logprobs", "top_logprobs"],
];

/** base: address of the server, ending in a slash. body: of the request. needsKey: whether the server wants a key. */
export function curlOf(base, body, needsKey) {
  const lines = [`curl ${quoted(`${base}v1/chat/completions`)}`, "-H 'Content-Type: application/json'"];
  if (needsKey) lines.push(`-H "Authorization: Bearer $${KEY_VARIABLE}"`);
  lines.push(`-d ${quoted(JSON.stringify(body, null, 2))}`);
  return `${lines.join(" \\\n  ")}\n`;
}

export function pythonOf(base, body, needsKey) {
  const own = Object.entries(body).filter(([name]) => !OF_OPENAI.includes(name));
  const fields = OF_OPENAI.filter((name) => name in body).map((name) => `    ${name}=${literal(body[name], 4)},`);
  if (own.length) fields.push(`    extra_body=${literal(Object.fromEntries(own), 4)},`);
  return [
    ...(needsKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(`${base}v1`)}, api_key=${needsKey ? `os.environ["${KEY_VARIABLE}"]` : '"none"'})`,
    "completion = client.chat.completions.create(",
    ...fields,
    ")",
    "print(completion.choices[0].message.content)",
    "",
  ].join("\n");
}

/** For a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function literal(value, indent = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const entries = Array.isArray(value)
    ? value.map((each) => literal(each, indent + 4))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, indent + 4)}`);
  const line = entries.join(", ");
  if (line.length < 80 && !line.includes("\n")) return `${open}${line}${close}`;
  const inner = " ".repeat(indent + 4);
  return `${open}\n${entries.map((entry) => `${inner}${entry},\n`).join("")}${" ".repeat(indent)}${close}`;
}
