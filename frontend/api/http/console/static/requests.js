// Requests: a table of those that ended last, newest first, each with a bar of its phases: when each began and ended after the
// arrival, on a log scale, so that a queue of 2 ms is seen before a decode of 20 s.

import { byId, el, setText } from "./dom.js";
import { count, duration, percent, timeOfDay } from "./format.js";

const MOST_ROWS = 100;
const PHASES = ["queue", "prefill", "decode"];
// Left end of the scale.
const LEAST_S = 0.001;

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
    const name = request.adapter || request.model || model;
    const phases = phasesOf(request);
    const bar = barOf(phases);
    const cached = request.num_cached_tokens ? `, ${count(request.num_cached_tokens)} of them cached` : "";
    const ended = request.error || request.finish_reasons.join(", ");
    const row = el(
      "tr",
      { "data-bad": Boolean(request.error) || request.finish_reasons.includes("error") },
      el("td", { "data-label": "Arrived" }, timeOfDay(request.arrival_time)),
      el("td", { class: "id", "data-label": "Request", title: request.request_id }, el("code", {}, request.request_id)),
      el("td", { "data-label": "Model", class: "name", title: name }, name),
      el("td", { "data-label": "Prompt", class: "number", title: `${count(request.num_prompt_tokens)} tokens${cached}` }, count(request.num_prompt_tokens)),
      el("td", { "data-label": "Output", class: "number" }, count(request.num_generation_tokens)),
      el("td", { "data-label": "Phases", class: "phases" }, bar),
      el("td", { "data-label": "Total", class: "number" }, duration(request.total_s)),
      el("td", { "data-label": "Finish", class: "finish" }, ended),
    );
    this.rows.prepend(row);
    this.shown.unshift({ row, bar, phases });
    while (this.shown.length > MOST_ROWS) this.shown.pop().row.remove();
  }

  /** The scale ends at the power of ten above the longest request. */
  scale() {
    const longest = Math.max(...this.shown.map(({ phases }) => phases.at(-1)?.end ?? 0));
    const decades = Math.max(1, Math.ceil(Math.log10(longest / LEAST_S) - 1e-9));
    const placeOf = (seconds) => (100 * Math.max(0, Math.log10(seconds / LEAST_S))) / decades;
    setText(byId("phase-scale"), `log scale, ${duration(LEAST_S)} to ${duration(LEAST_S * 10 ** decades)}`);
    for (const { bar, phases } of this.shown) {
      bar.style.setProperty("--decades", decades);
      phases.forEach(({ begin, end }, number) => {
        const part = bar.children[number].style;
        part.left = `${placeOf(begin)}%`;
        part.width = `${placeOf(end) - placeOf(begin)}%`;
      });
    }
  }
}

/** Return the phases that a request had, with their begins and ends in seconds after its arrival. */
function phasesOf(request) {
  let end = 0;
  const known = PHASES.map((name) => ({ name, seconds: request[`${name}_s`] })).filter((phase) => phase.seconds !== null);
  return known.map(({ name, seconds }) => ({ name, seconds, begin: end, end: (end += seconds) }));
}

function barOf(phases) {
  const total = phases.at(-1)?.end || 1;
  const spoken = phases.map(({ name, seconds }) => `${name} ${duration(seconds)} (${percent(seconds / total)})`).join(", ") || "never scheduled";
  return el("span", { class: "phase-bar", role: "img", "aria-label": spoken, title: spoken }, ...phases.map(({ name }) => el("i", { class: name })));
}
