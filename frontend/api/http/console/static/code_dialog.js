// CodeDialog: shows the request that the playground would send now, for curl or for Python.

import { copying } from "./clipboard.js";
import { byId, setText } from "./dom.js";
import { curlOf, pythonOf } from "./request_code.js";
import { key } from "./server.js";

const LANGUAGES = { curl: curlOf, python: pythonOf };

export class CodeDialog {
  constructor() {
    this.dialog = byId("code-dialog");
    this.buttons = [...this.dialog.querySelectorAll("[data-language]")];
    for (const button of this.buttons) button.addEventListener("click", () => this.show(button.dataset.language));
    copying(byId("code-copy"), () => byId("code-text").textContent);
  }

  open(body) {
    const { named, number } = withoutImages(body);
    this.body = named;
    const notes = [key.get() && "TETRAD_API_KEY stands for your API key."];
    if (number) notes.push(`IMAGE_1${number > 1 ? ` to IMAGE_${number} stand` : " stands"} for your image${number > 1 ? "s" : ""} in base64.`);
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

/** Replace the base64 of images by names: it may have millions of characters. Return the body and the number of images. */
function withoutImages(body) {
  let number = 0;
  const part = (each) => {
    if (each.type !== "image_url") return each;
    const [head] = each.image_url.url.split(",", 1);
    number += 1;
    return { ...each, image_url: { url: `${head},IMAGE_${number}` } };
  };
  const turn = ({ role, content }) => ({ role, content: Array.isArray(content) ? content.map(part) : content });
  return { named: { ...body, messages: body.messages.map(turn) }, number };
}
