// Playground: a conversation with the model, kept in this page alone.

import { Answer } from "./answer.js";
import { Attachments } from "./attachments.js";
import { CodeDialog } from "./code_dialog.js";
import { byId, el, setText } from "./dom.js";
import { ask, events } from "./server.js";
import { Sampling } from "./sampling.js";

export class Playground {
  /** onKeyNeeded: called with the error of a server that wants a key. */
  constructor(onKeyNeeded) {
    this.onKeyNeeded = onKeyNeeded;
    this.sampling = new Sampling();
    this.attachments = new Attachments();
    this.codeDialog = new CodeDialog();
    this.regenerate = el("button", { class: "quiet", type: "button" }, "Regenerate");
    this.turns = [];
    this.latest = null;
    this.running = null;
    this.messages = byId("messages");
    this.input = byId("message");
    this.listen();
  }

  focus() {
    if (!matchMedia("(pointer: coarse)").matches) this.input.focus({ preventScroll: true });
  }

  async loadModels() {
    try {
      const models = await (await ask("v1/models")).json();
      this.sampling.setModels(models.data);
      this.attachments.setModels(models.data);
    } catch {
      // The feed tells that the server is away or wants a key; a request without a model gets the server's.
    }
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => this.running?.abort());
    byId("playground").addEventListener("keydown", (event) => event.key === "Escape" && this.running?.abort());
    byId("clear").addEventListener("click", () => this.clear());
    byId("show-code").addEventListener("click", () => this.showCode());
    this.regenerate.addEventListener("click", () => this.sendAgain());
    byId("settings-toggle").addEventListener("click", (event) => {
      const open = byId("settings").classList.toggle("open");
      event.currentTarget.setAttribute("aria-expanded", String(open));
    });
  }

  clear() {
    this.running?.abort();
    this.turns = [];
    this.latest = null;
    for (const each of this.messages.querySelectorAll(".attached > *")) URL.revokeObjectURL(each.src);
    this.messages.replaceChildren(this.messages.firstElementChild, byId("welcome") ?? this.welcome);
    this.focus();
  }

  async send() {
    const text = this.input.value.trim();
    const fields = this.running || !(text || this.attachments.items.length) ? null : this.sampling.fields();
    if (!fields) return;
    this.welcome ??= byId("welcome");
    this.welcome.remove();
    this.input.value = "";
    const items = this.attachments.take();
    const shown = items.length ? [el("div", { class: "attached" }, ...items.map((item) => item.element()))] : [];
    if (text) shown.push(el("div", { class: "body" }, text));
    this.messages.append(el("article", { class: "message user" }, ...shown));
    await this.answer([...this.turns, userTurn(text, items)], fields);
  }

  /** Ask for the latest answer again, with the settings as they are now. */
  async sendAgain() {
    const fields = this.running || !this.latest ? null : this.sampling.fields();
    if (!fields) return;
    this.latest.answer.element.remove();
    this.input.focus();
    await this.answer(this.latest.asked, fields);
  }

  /** Stream the answer to turns of which the last is the question. */
  async answer(asked, fields) {
    const answer = new Answer({ shade: this.sampling.shade });
    this.latest = { asked, answer };
    answer.actions.append(this.regenerate);
    this.messages.append(answer.element);
    this.messages.scrollTop = this.messages.scrollHeight;
    const body = { ...this.body(asked, fields), stream: true };
    body.stream_options = { include_usage: true, continuous_usage_stats: true };
    await this.stream(answer, body);
    if (this.latest?.answer !== answer) return;
    // What failed before it said anything was never asked.
    this.turns = answer.text ? [...asked, { role: "assistant", content: answer.text }] : asked.slice(0, -1);
  }

  body(turns, fields) {
    const system = this.sampling.system ? [{ role: "system", content: this.sampling.system }] : [];
    return { ...fields, messages: [...system, ...turns] };
  }

  /** Show the request that Send would send; without a message in the composer, the latest one. */
  showCode() {
    const fields = this.sampling.fields();
    if (!fields) return;
    const text = this.input.value.trim();
    const { items } = this.attachments;
    const isNew = text || items.length || !this.latest;
    const turns = isNew ? [...this.turns, userTurn(text || "Hello!", items)] : this.latest.asked;
    this.codeDialog.open(this.body(turns, fields));
  }

  async stream(answer, body) {
    this.setRunning(new AbortController());
    try {
      const response = await ask("v1/chat/completions", { body, signal: this.running.signal });
      for await (const chunk of events(response)) this.follow(() => answer.take(chunk));
      this.follow(() => answer.end("done"));
      setText(byId("chat-news"), `Answer complete: ${answer.text}`);
    } catch (error) {
      const stopped = error.name === "AbortError";
      this.follow(() => answer.end(stopped ? "stopped" : "failed", stopped ? null : error));
      if (stopped) setText(byId("chat-news"), "Stopped.");
      if (error.status === 401) this.onKeyNeeded(error);
    } finally {
      this.setRunning(null);
    }
  }

  /** Change what is shown, and stay at the end if the reader is there. */
  follow(change) {
    const { messages } = this;
    const atEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 40;
    change();
    if (atEnd) messages.scrollTop = messages.scrollHeight;
  }

  setRunning(running) {
    const hadFocus = document.activeElement === byId("stop") || document.activeElement === byId("send");
    this.running = running;
    byId("send").hidden = Boolean(running);
    byId("stop").hidden = !running;
    if (hadFocus) byId(running ? "stop" : "send").focus();
  }
}

/** Images, audio and videos precede the text, as models are trained. */
function userTurn(text, items) {
  if (!items.length) return { role: "user", content: text };
  const parts = items.map((item) => item.part());
  return { role: "user", content: text ? [...parts, { type: "text", text }] : parts };
}
