// CodeDialog: shows the request that the playground would send now, for curl or for Python.

import { copying } from "./clipboard.js";
import { byId, setText } from "./dom.js";
import { curlOf, pythonOf } from "./request_code.js";
import { key } from "./server.js";

const LANGUAGES = { curl: curlOf, python: pythonOf };
const PLURALS = { image: "s", audio: "", video: "s" };

export class CodeDialog {
  constructor() {
    this.dialog = byId("code-dialog");
    this.buttons = [...this.dialog.querySelectorAll("[data-language]")];
    for (const button of this.buttons) button.addEventListener("click", () => this.show(button.dataset.language));
    copying(byId("code-copy"), () => byId("code-text").textContent);
  }

  open(body) {
    const { named, counts } = withoutFiles(body);
    this.body = named;
    const notes = [key.get() && "TETRAD_API_KEY stands for your API key."];
    for (const [kind, number] of Object.entries(counts)) {
      const name = kind.toUpperCase();
      notes.push(`${name}_1${number > 1 ? ` to ${name}_${number} stand` : " stands"} for your ${kind}${number > 1 ? PLURALS[kind] : ""} in base64.`);
    }
    setText(byId("code-note"), notes.filter(Boolean).join(" "));
    this.show(this.language ?? "curl");
    this.dialog.showModal();
  }

  show(language) {
    this.language = language;
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.language === language));
    const base = new URL(".", location.href).href;
    setText(byId("code-text"), LANGUAGES[language](base, this.body, Boolean(key.get())));
  }
}

/** Replace the base64 of files by names: it may have millions of characters. Return the body and the number of files by kind. */
function withoutFiles(body) {
  const counts = {};
  const part = (each) => {
    const [kind, rest] = each.type.split("_");
    if (rest !== "url") return each;
    const [head] = each[each.type].url.split(",", 1);
    counts[kind] = (counts[kind] ?? 0) + 1;
    return { ...each, [each.type]: { url: `${head},${kind.toUpperCase()}_${counts[kind]}` } };
  };
  const turn = ({ role, content }) => ({ role, content: Array.isArray(content) ? content.map(part) : content });
  return { named: { ...body, messages: body.messages.map(turn) }, counts };
}
