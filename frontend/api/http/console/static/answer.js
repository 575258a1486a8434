// Answer: one answer of the model while it is streamed: its text as Markdown, or its tokens if they are known; its numbers, its end.

import { copyButton } from "./clipboard.js";
import { el, setText } from "./dom.js";
import { duration, plural, rate } from "./format.js";
import { Markdown } from "./markdown.js";
import { Tokens } from "./tokens.js";

export class Answer {
  constructor({ shade }) {
    this.text = "";
    this.numTokens = 0;
    this.asked = performance.now();
    this.firstAt = this.lastAt = null;
    this.facts = {};
    this.reasoning = el("div", { class: "reasoning" });
    this.body = el("div", { class: "body" });
    this.markdown = new Markdown(this.body);
    this.tokenList = el("div", { class: "tokens" });
    this.tokens = new Tokens(this.tokenList);
    this.numbers = el("p", { class: "numbers" });
    this.tokensButton = el("button", { class: "quiet", type: "button", hidden: true }, "Tokens");
    this.tokensButton.addEventListener("click", () => this.showTokens(this.tokenList.hidden));
    this.actions = el("div", { class: "actions" }, copyButton(() => this.text), this.tokensButton);
    this.element = el(
      "article",
      { class: "message assistant", "data-shade": String(shade), "data-state": "streaming" },
      ...[this.body, this.tokenList, this.numbers, this.actions],
    );
    // Shades are those of tokens.
    this.showTokens(shade);
    setText(this.numbers, "waiting for the first token");
  }

  /** Take a chunk of the stream. */
  take(chunk) {
    if (chunk.usage) this.numTokens = chunk.usage.completion_tokens;
    this.facts.id = chunk.id;
    const choice = chunk.choices[0];
    if (!choice) return;
    if (choice.finish_reason) this.facts.finish = choice.finish_reason;
    const known = choice.logprobs?.content ?? [];
    const text = choice.delta.content ?? "";
    const thought = choice.delta.reasoning_content ?? choice.delta.reasoning ?? "";
    if (text || thought || known.length) this.note();
    if (thought) this.think(thought);
    this.say(text, known);
    this.count();
  }

  /** Show tokens in place of Markdown, or the other way round. */
  showTokens(shown) {
    this.tokenList.hidden = !shown;
    this.body.hidden = shown;
    this.tokensButton.setAttribute("aria-pressed", String(shown));
  }

  note() {
    this.lastAt = performance.now();
    this.firstAt ??= this.lastAt;
  }

  think(text) {
    if (!this.reasoning.isConnected) this.body.before(this.reasoning);
    this.reasoning.append(text);
  }

  say(text, known) {
    this.text += text;
    // Tokens that are no part of the answer (thoughts, what a stop string cut off) are not shown as one.
    if (known.length && known.map((each) => each.token).join("") === text) for (const each of known) this.tokens.add(each);
    else if (text) this.tokenList.append(text);
    if (known.length) this.tokensButton.hidden = false;
    if (text) this.markdown.show(this.text, false);
  }

  /** End it. how: "done", "stopped" or "failed", with the error then. */
  end(how, error) {
    this.element.dataset.state = how;
    this.markdown.show(this.text, true);
    if (how === "stopped") this.facts.finish = "stopped";
    this.count();
    if (!error) return;
    const code = [error.status || "", error.code ?? ""].filter(Boolean).join(" ");
    this.element.append(el("p", { class: "error", role: "alert" }, error.message, code && el("small", {}, ` ${code}`)));
    this.numbers.hidden = this.firstAt === null;
  }

  count() {
    const { finish, id } = this.facts;
    const spent = (this.lastAt - this.firstAt) / 1000;
    const perSecond = this.numTokens > 1 && spent > 0 ? `${rate((this.numTokens - 1) / spent)} tokens/s` : "";
    const first = this.firstAt === null ? "" : `first token after ${duration((this.firstAt - this.asked) / 1000)}`;
    const parts = [this.numTokens ? plural(this.numTokens, "token") : "", perSecond, first, finish ?? "", finish ? id : ""];
    const text = parts.filter(Boolean).join(" · ");
    if (text) setText(this.numbers, text);
  }
}
