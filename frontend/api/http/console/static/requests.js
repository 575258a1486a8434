// Requests: a table of those that ended last, newest first, each with a bar of its phases.

import { el } from "./dom.js";
import { count, duration, timeOfDay } from "./format.js";

const MOST_ROWS = 100;
const PHASES = ["queue", "prefill", "decode"];

export class Requests {
  constructor(rows, empty) {
    this.rows = rows;
    this.empty = empty;
    this.invitation = [...empty.childNodes];
    this.shown = [];
  }

  /** Take requests that ended, oldest first. refused: why they are not shown; empty: they are. first: whether they are all. */
  update(requests, refused, model, first) {
    if (first) this.clear();
    if (refused) this.empty.replaceChildren(`Requests are shown to operators. ${refused}`);
    else this.empty.replaceChildren(...this.invitation);
    for (const request of requests) this.add(request, model);
    this.empty.hidden = this.shown.length > 0;
    if (requests.length) this.scale();
  }

  clear() {
    this.shown = [];
    this.rows.replaceChildren();
  }

  add(request, model) {
    const bar = barOf(request);
    const cached = request.num_cached_tokens ? `, ${count(request.num_cached_tokens)} of them cached` : "";
    const ended = request.error || request.finish_reasons.join(", ");
    const row = el(
      "tr",
      { "data-bad": Boolean(request.error) || request.finish_reasons.includes("error") },
      el("td", { "data-label": "Arrived" }, timeOfDay(request.arrival_time)),
      el("td", { class: "id", "data-label": "Request", title: request.request_id }, el("code", {}, request.request_id)),
      el("td", { "data-label": "Model", class: "name", title: request.adapter || model }, request.adapter || model),
      el("td", { "data-label": "Prompt", class: "number", title: `${count(request.num_prompt_tokens)} tokens${cached}` }, count(request.num_prompt_tokens)),
      el("td", { "data-label": "Output", class: "number" }, count(request.num_generation_tokens)),
      el("td", { "data-label": "Phases", class: "phases" }, bar),
      el("td", { "data-label": "Total", class: "number" }, duration(request.total_s)),
      el("td", { "data-label": "Finish", class: "finish" }, ended),
    );
    this.rows.prepend(row);
    this.shown.unshift({ row, bar, total: request.total_s });
    while (this.shown.length > MOST_ROWS) this.shown.pop().row.remove();
  }

  /** The longest request's bar is as wide as the column. */
  scale() {
    const longest = Math.max(...this.shown.map((each) => each.total), 1e-6);
    for (const { bar, total } of this.shown) bar.style.width = `${Math.max(2, (100 * total) / longest)}%`;
  }
}

function barOf(request) {
  const phases = PHASES.map((name) => ({ name, seconds: request[`${name}_s`] })).filter((phase) => phase.seconds !== null);
  const spoken = phases.map(({ name, seconds }) => `${name} ${duration(seconds)}`).join(", ") || "never scheduled";
  const bar = el("span", { class: "phase-bar", role: "img", "aria-label": spoken, title: spoken });
  for (const { name, seconds } of phases) {
    const part = el("i", { class: name });
    part.style.flexGrow = seconds;
    bar.append(part);
  }
  return bar;
}
