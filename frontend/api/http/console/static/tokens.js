// Tokens: an answer token by token; one that is pointed at or reached by the arrow keys shows what else was likely.

import { byId, el } from "./dom.js";

const VISIBLE = { " ": "␣", "\n": "↵", "\t": "⇥" };

export class Tokens {
  /** element: takes the tokens. */
  constructor(element) {
    this.element = element;
    this.spans = [];
    element.addEventListener("pointerover", (event) => this.point(event.target));
    element.addEventListener("click", (event) => event.target.classList.contains("token") && event.target.focus());
    element.addEventListener("pointerleave", () => alternatives.hide(document.activeElement));
    element.addEventListener("focusin", (event) => this.point(event.target));
    element.addEventListener("focusout", () => alternatives.hide());
    element.addEventListener("keydown", (event) => this.move(event));
  }

  add({ token, logprob, top_logprobs: tops }) {
    const probability = Math.exp(logprob);
    // One of them can be reached with Tab, the others from there.
    const span = el("span", { class: "token", tabindex: this.spans.length ? -1 : 0, "aria-describedby": "alternatives" }, token);
    span.style.setProperty("--doubt", (1 - probability).toFixed(3));
    span.choice = { token, probability, tops };
    this.spans.push(span);
    this.element.append(span);
  }

  point(target) {
    if (target.choice) alternatives.show(target);
  }

  move(event) {
    const here = this.spans.indexOf(event.target);
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") alternatives.hide();
    if (here < 0 || !step) return;
    event.preventDefault();
    const there = this.spans[Math.min(this.spans.length - 1, Math.max(0, here + step))];
    this.spans[here].tabIndex = -1;
    there.tabIndex = 0;
    there.focus();
  }
}

class Alternatives {
  constructor() {
    this.element = byId("alternatives");
  }

  show(span) {
    const { token, probability, tops } = span.choice;
    const rows = tops.map((top) => rowOf(top.token, Math.exp(top.logprob), top.token === token));
    // What was drawn need not be among the likeliest.
    if (!tops.some((top) => top.token === token)) rows.push(rowOf(token, probability, true));
    this.element.replaceChildren(el("table", {}, el("tbody", {}, ...rows)));
    this.element.hidden = false;
    this.place(span.getClientRects()[0]);
  }

  /** Hide, or go back to the token that has the focus. */
  hide(focused) {
    if (focused?.choice) this.show(focused);
    else this.element.hidden = true;
  }

  place(token) {
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const below = token.bottom + 6 + height < innerHeight;
    this.element.style.left = `${Math.max(8, Math.min(token.left, innerWidth - width - 8))}px`;
    this.element.style.top = `${below ? token.bottom + 6 : Math.max(8, token.top - 6 - height)}px`;
  }
}

function rowOf(token, probability, chosen) {
  const bar = el("i");
  bar.style.width = `${100 * probability}%`;
  const shown = percentOf(probability);
  return el(
    "tr",
    { class: chosen ? "chosen" : null },
    el("th", { scope: "row" }, el("code", {}, visible(token)), chosen ? el("span", { class: "unseen" }, " (chosen)") : ""),
    el("td", { class: "share" }, bar),
    el("td", { class: "number" }, shown),
  );
}

const visible = (token) => (token === "" ? "(end)" : token.replace(/[ \n\t]/g, (character) => VISIBLE[character]));
const percentOf = (probability) => (probability < 0.0005 ? "< 0.1 %" : `${(100 * probability).toFixed(1)} %`);

const alternatives = new Alternatives();
