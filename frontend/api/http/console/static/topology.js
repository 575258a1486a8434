// Topology: the services as cards, and lines between those that talk to each other.
//
//   frontend ──┬── tokenizers
//              └── engine cores ─── workers

import { el, setText, svg } from "./dom.js";
import { age, count, percent } from "./format.js";

/** What each kind of service says of itself, as [name, value]; values that are not known are left out. */
const FACTS = {
  frontend: (node) => [["requests", count(node.num_requests)]],
  tokenizer: (node) => [["vocabulary", node.vocab_size && count(node.vocab_size)]],
  engine: (node) => [
    ["model", node.model],
    ["KV role", node.kv_role],
    ["context", node.max_model_len && count(node.max_model_len)],
    ["KV tokens", node.kv_cache_tokens && count(node.kv_cache_tokens)],
    ["load", node.load && `${node.load.running} running, ${node.load.waiting} waiting, KV ${percent(node.load.kv_cache_usage)}`],
  ],
  worker: (node) => [["device", node.device], ["computes in", node.dtype]],
};

class ServiceCard {
  constructor(kind) {
    this.kind = kind;
    this.name = el("h3");
    this.state = el("span", { class: "state" }, el("i", { "aria-hidden": "true" }), el("span"));
    this.problem = el("p", { class: "problem" });
    this.facts = el("dl");
    this.values = new Map();
    this.element = el("article", { class: "service" }, el("header", {}, this.name, this.state), this.facts, this.problem);
  }

  update(node, now) {
    const state = node.paused ? "paused" : node.state;
    this.element.dataset.state = state;
    setText(this.name, node.name);
    setText(this.state.lastChild, state);
    setText(this.problem, node.problem);
    this.problem.hidden = !node.problem;
    const facts = [["version", node.version], [timeName(node), timeText(node, now)]];
    // A problem takes the place of what is of no interest then: nothing moves.
    if (!node.problem) facts.push(...FACTS[this.kind](node));
    this.show(facts.filter(([, value]) => value));
  }

  show(facts) {
    const names = facts.map(([name]) => name).join();
    if (names !== this.names) {
      this.names = names;
      this.values = new Map(facts.map(([name]) => [name, el("dd")]));
      this.facts.replaceChildren(...[...this.values].map(([name, value]) => el("div", {}, el("dt", {}, name), value)));
    }
    for (const [name, value] of facts) setText(this.values.get(name), value);
  }
}

function timeName(node) {
  if (node.state === "lost") return "lost for";
  return node.up_since || node.name === "frontend" ? "up for" : "connected for";
}

function timeText(node, now) {
  if (node.state === "connecting" || node.state === "unknown") return "";
  const since = node.state === "lost" ? node.since : (node.up_since ?? node.since);
  return since === null ? "" : age(now - since);
}

export class Topology {
  /** news: an element that says what changed, for those who do not see it. */
  constructor(element, news) {
    this.element = element;
    this.news = news;
    this.cards = new Map();
    this.changed = new Map(); // id -> when its state changed, for services whose caller does not say
    this.edges = svg("svg", { class: "edges", "aria-hidden": "true" });
    new ResizeObserver(() => this.draw()).observe(element);
  }

  update(topology, now) {
    const places = placesOf(topology);
    const shape = places.map((place) => place.id).join();
    if (shape !== this.shape) this.build(places, shape);
    this.show(places, now);
  }

  show(places, now) {
    this.tell(places, now);
    this.places = places;
    for (const { id, node } of places) this.cards.get(id).update({ ...node, since: node.since ?? this.changed.get(id) ?? null }, now);
    this.draw();
  }

  /** Nothing is known any more but that this frontend does not answer. */
  lose(now) {
    if (!this.places) return;
    const unknown = this.places.map((place) => ({ ...place, node: { ...place.node, state: "unknown", problem: "" } }));
    unknown[0].node = { ...unknown[0].node, state: "lost", since: null, problem: "It does not answer; trying again." };
    this.show(unknown, now);
  }

  build(places, shape) {
    this.shape = shape;
    this.cards = new Map(places.map((place) => [place.id, new ServiceCard(place.kind)]));
    const rows = places.filter((place) => place.column === 2).reduce((sum, place) => sum + place.rows, 0);
    for (const { id, column, row, rows: span, kind } of places) {
      const { element } = this.cards.get(id);
      element.dataset.kind = kind;
      element.style.gridColumn = column;
      element.style.gridRow = column === 1 ? `1 / span ${rows}` : `${row} / span ${span}`;
    }
    this.element.replaceChildren(this.edges, ...places.map((place) => this.cards.get(place.id).element));
  }

  tell(places, now) {
    const before = new Map(this.places?.map(({ id, node }) => [id, node.state]));
    const changed = places.filter(({ id, node }) => before.has(id) && before.get(id) !== node.state);
    for (const { id } of changed) this.changed.set(id, now);
    if (changed.length) setText(this.news, changed.map(({ node }) => `${node.name}: ${node.state}`).join(", "));
  }

  /** Draw the lines from where the cards are now. */
  draw() {
    const box = this.element.getBoundingClientRect();
    if (!this.places || !box.width) return;
    const lines = this.places.filter((place) => place.caller).map((place) => {
      const from = this.cards.get(place.caller).element.getBoundingClientRect();
      const to = this.cards.get(place.id).element.getBoundingClientRect();
      const [x1, y1, x2, y2] = [from.right - box.left, middle(from) - box.top, to.left - box.left, middle(to) - box.top];
      const bend = (x2 - x1) / 2;
      return { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, state: place.node.state, busy: place.busy };
    });
    const drawn = JSON.stringify(lines);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.edges.replaceChildren(...lines.map(({ d, state, busy }) => svg("path", { d, "data-state": state, "data-busy": String(busy) })));
  }
}

const middle = (box) => (box.top + box.bottom) / 2;

/** Return every service with its place in the grid and who calls it; an engine core has as many rows as it has workers. */
function placesOf({ frontend, tokenizers, engines }) {
  const places = [{ id: "frontend", kind: "frontend", node: frontend, column: 1 }];
  let row = 1;
  tokenizers.forEach((node, number) => {
    places.push({ id: `t${number}`, kind: "tokenizer", node, column: 2, row, rows: 1, caller: "frontend", busy: frontend.num_requests > 0 });
    row += 1;
  });
  engines.forEach((node, number) => {
    const id = `e${number}`;
    places.push({ id, kind: "engine", node, column: 2, row, rows: node.workers.length, caller: "frontend", busy: node.num_requests > 0 });
    const busy = node.load?.running > 0;
    for (const worker of node.workers) {
      const known = { ...worker, dtype: node.dtype };
      places.push({ id: `${id}w${row}`, kind: "worker", node: known, column: 3, row, rows: 1, caller: id, busy });
      row += 1;
    }
  });
  return places;
}
