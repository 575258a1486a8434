// Charts: which there are, and what they are made of.

import { Chart } from "./chart.js";
import { count, duration, percent, rate } from "./format.js";

// Requests end one by one: over a few seconds their times are a line, over one they are dots.
const OVER_S = 15;

const timesOf = (name) => [
  { name: "p50", points: (history) => history.quantile(name, 0.5, OVER_S) },
  { name: "p95", points: (history) => history.quantile(name, 0.95, OVER_S) },
  { name: "mean", points: (history) => history.mean(name, OVER_S) },
];

const IN_USE = {
  title: "KV cache",
  format: percent,
  least: 0.01,
  most: 1,
  lines: [{ name: "in use", points: (history) => history.gauge("kv_cache_usage") }],
};

const FOUND = {
  title: "Prefix cache",
  format: percent,
  least: 0.1,
  most: 1,
  lines: [{ name: "of prompt tokens found", points: (history) => history.share("cache_hits", "cache_queries", OVER_S) }],
};

/** The charts of the overview. */
export const LOAD = [
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
  IN_USE,
  {
    title: "Time to first token",
    format: duration,
    least: 0.01,
    lines: timesOf("first_token_s"),
  },
  {
    title: "Time between tokens",
    format: duration,
    least: 0.01,
    lines: timesOf("per_token_s"),
  },
  FOUND,
  {
    title: "Speculation",
    isShown: (history) => history.latest?.draft_tokens > 0,
    format: percent,
    least: 0.1,
    most: 1,
    lines: [{ name: "of draft tokens accepted", points: (history) => history.share("accepted_tokens", "draft_tokens", OVER_S) }],
  },
];

/** The charts of the KV cache. */
export const CACHE = [
  IN_USE,
  FOUND,
  {
    title: "Blocks per second",
    format: rate,
    least: 1,
    lines: [
      { name: "cached", points: (history) => history.rateOfCaches("num_blocks_cached", OVER_S) },
      { name: "evicted", points: (history) => history.rateOfCaches("num_blocks_evicted", OVER_S) },
    ],
  },
  {
    title: "Host tier, blocks per second",
    isShown: (history) => history.anyCache("num_blocks_swapped_out"),
    format: rate,
    least: 1,
    lines: [
      { name: "copied out", points: (history) => history.rateOfCaches("num_blocks_swapped_out", OVER_S) },
      { name: "copied back", points: (history) => history.rateOfCaches("num_blocks_swapped_in", OVER_S) },
    ],
  },
];

export class Charts {
  constructor(element, specs) {
    this.specs = specs;
    this.charts = specs.map((spec) => new Chart(spec));
    element.append(...this.charts.map((chart) => chart.element));
  }

  update(history) {
    this.specs.forEach(({ isShown = () => true }, place) => {
      const chart = this.charts[place];
      // Most servers never draft, and have no second tier.
      chart.element.hidden = !isShown(history);
      chart.update(history);
    });
  }
}
