// KeyDialog: asks for the API key, keeps it in sessionStorage: in this tab, until it is closed.

import { byId, setText } from "./dom.js";
import { key } from "./server.js";

export class KeyDialog {
  /** onChange: called when there is another key. */
  constructor(onChange) {
    this.onChange = onChange;
    this.dialog = byId("key-dialog");
    this.reason = byId("key-reason");
    this.usual = this.reason.textContent;
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.use(byId("key").value.trim());
    });
    byId("key-forget").addEventListener("click", () => this.use(""));
    byId("key-cancel").addEventListener("click", () => this.dialog.close());
  }

  /** error: why the server wants another key; none: the user wants to. */
  open(error) {
    if (this.dialog.open) return;
    // A first visit is no failure: only a key that was sent can be wrong.
    setText(this.reason, error && key.get() ? error.message : this.usual);
    byId("key").value = "";
    this.dialog.showModal();
  }

  use(value) {
    key.set(value);
    this.dialog.close();
    this.onChange();
  }
}
