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
    this.body = body;
    setText(byId("code-note"), key.get() ? "TETRAD_API_KEY stands for your API key." : "");
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
