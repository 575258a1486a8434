// Charts: which there are, and what they are made of.

import { Chart } from "./chart.js";
import { count, duration, percent, rate } from "./format.js";

// Requests end one by one: a mean over a few seconds is a line, over one it is dots.
const MEAN_OVER_S = 15;

const SPECS = [
  {
    title: "Requests",
    format: count,
    least: 4,
    lines: [
      { name: "running", points: (history) => history.gauge("running") },
      { name: "waiting", points: (history) => history.gauge("waiting") },
    ],
  },
  {
    title: "Tokens per second",
    format: rate,
    least: 10,
    lines: [{ name: "generated", points: (history) => history.rate("generation_tokens", 1) }],
  },
  { title: "KV cache", format: percent, least: 0.01, most: 1, lines: [{ name: "in use", points: (history) => history.gauge("kv_cache_usage") }] },
  {
    title: "Time to first token",
    format: duration,
    least: 0.01,
    lines: [{ name: "mean of 15 s", points: (history) => history.mean("first_token_s", MEAN_OVER_S) }],
  },
  {
    title: "Time between tokens",
    format: duration,
    least: 0.01,
    lines: [{ name: "mean of 15 s", points: (history) => history.mean("per_token_s", MEAN_OVER_S) }],
  },
  {
    title: "Prefix cache",
    format: percent,
    least: 0.1,
    most: 1,
    lines: [{ name: "of prompt tokens found", points: (history) => history.share("cache_hits", "cache_queries", MEAN_OVER_S) }],
  },
  {
    title: "Speculation",
    shownOnce: "draft_tokens",
    format: percent,
    least: 0.1,
    most: 1,
    lines: [{ name: "of draft tokens accepted", points: (history) => history.share("accepted_tokens", "draft_tokens", MEAN_OVER_S) }],
  },
];

export class Charts {
  constructor(element) {
    this.charts = SPECS.map((spec) => new Chart(spec));
    element.append(...this.charts.map((chart) => chart.element));
  }

  update(history) {
    SPECS.forEach(({ shownOnce }, place) => {
      const chart = this.charts[place];
      // Most servers never draft.
      chart.element.hidden = shownOnce !== undefined && !history.latest?.[shownOnce];
      chart.update(history);
    });
  }
}
