// Cache: the KV blocks and the prefix cache of each engine core, as a card with a bar of its blocks.

import { el, setText } from "./dom.js";
import { count, percent } from "./format.js";

/** Parts of the bar: [class, name, number of blocks]. Together they are all blocks of the pool. */
const partsOf = (cache) => [
  ["used", "in use", cache.num_used_blocks],
  ["cached", "free, cached", cache.num_free_cached_blocks],
  ["empty", "free, empty", cache.num_empty_blocks],
];

const groupName = (group) => {
  if (group.is_state) return "states";
  return group.sliding_window ? `a window of ${count(group.sliding_window)} tokens` : "all keys";
};

/** What a card says below its bar, as [name, value]; values that do not apply are left out. */
function factsOf(cache) {
  const windows = cache.groups.some((group) => group.sliding_window);
  const tier = cache.num_host_blocks > 0;
  return [
    ["KV groups", cache.groups.length ? cache.groups.map(groupName).join(", ") : "none"],
    ["prompt tokens looked up", count(cache.num_queries)],
    ["of them found", cache.num_queries ? `${count(cache.num_hits)} (${percent(cache.num_hits / cache.num_queries)})` : "0"],
    ["found in host memory", tier && count(cache.num_host_hits)],
    ["blocks cached", count(cache.num_blocks_cached)],
    ["blocks evicted", count(cache.num_blocks_evicted)],
    ["passed by windows", windows && count(cache.num_blocks_passed)],
    ["host tier", tier && `${count(cache.num_used_host_blocks)} of ${count(cache.num_host_blocks)} blocks`],
    ["copied to the host tier", tier && count(cache.num_blocks_swapped_out)],
    ["copied back", tier && count(cache.num_blocks_swapped_in)],
  ].filter(([, value]) => value !== false);
}

class CacheCard {
  constructor() {
    this.name = el("h3");
    this.size = el("span", { class: "size" });
    this.bar = el("div", { class: "block-bar", role: "img" });
    this.legend = el("ul", { class: "legend" });
    this.facts = el("dl");
    this.element = el("article", { class: "card cache-card" }, el("header", {}, this.name, this.size), this.bar, this.legend, this.facts);
    this.empty = el("p", { class: "empty" }, "It does not say what its blocks hold.");
    this.element.append(this.empty);
  }

  update(engine) {
    const cache = engine.kv_cache;
    setText(this.name, engine.name);
    this.empty.hidden = Boolean(cache);
    for (const each of [this.bar, this.legend, this.facts]) each.hidden = !cache;
    setText(this.size, cache ? sizeOf(cache) : engine.state);
    if (cache) this.show(cache);
  }

  show(cache) {
    const parts = partsOf(cache);
    const total = parts.reduce((sum, [, , number]) => sum + number, 0);
    const texts = parts.map(([, name, number]) => `${name} ${count(number)} (${percent(total ? number / total : 0)})`);
    const facts = factsOf(cache);
    const shown = JSON.stringify([texts, facts]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.bar.setAttribute("aria-label", `Blocks: ${texts.join(", ")}`);
    this.bar.replaceChildren(...parts.map(([kind, , number]) => partOf(kind, number)));
    this.legend.replaceChildren(...parts.map(([kind], place) => el("li", { class: kind }, texts[place])));
    this.facts.replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }
}

const sizeOf = (cache) => {
  const total = partsOf(cache).reduce((sum, [, , number]) => sum + number, 0);
  return `${count(total)} blocks of ${count(cache.block_size)} tokens`;
};

function partOf(kind, number) {
  const part = el("i", { class: kind });
  part.style.flexGrow = number;
  return part;
}

export class Cache {
  constructor(element) {
    this.element = element;
    this.cards = [];
  }

  update(engines) {
    if (engines.length !== this.cards.length) {
      this.cards = engines.map(() => new CacheCard());
      this.element.replaceChildren(...this.cards.map((card) => card.element));
    }
    engines.forEach((engine, place) => this.cards[place].update(engine));
  }
}
