// Chart: lines over the last minutes, as SVG. One unit of x is a second, of y the whole height, so that it fits any width.
// Written here since a library would draw the lines alone: theme, keyboard and what screen readers hear are the rest of this file.

import { el, setText, svg } from "./dom.js";
import { timeOfDay } from "./format.js";

const HEIGHT = 100;
// Room above the highest value.
const HEADROOM = 1.08;
const STEPS = [1, 2, 2.5, 5, 10];

export class Chart {
  /**
   * title: of the chart. lines: [{name, points(history)}], at most three. format: value -> text. least: smallest top of the scale, so that noise does not look like load.
   * most: largest.
   */
  constructor({ title, lines, format, least, most = Infinity }) {
    Object.assign(this, { title, lines, format, least, most, series: lines.map(() => []), end: 0, span: 60, pointed: null });
    this.values = lines.map(() => el("b", {}, "–"));
    this.when = el("time");
    this.past = el("span", {}, "1 min ago");
    this.top = el("span", { class: "top" });
    this.paths = lines.map((_, place) => svg("path", { class: `line line-${place}` }));
    this.area = svg("path", { class: "area" });
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.grid = [0, HEIGHT / 2].map((y) => svg("line", { class: "grid", x1: 0, y1: y, y2: y }));
    this.plot = svg(
      "svg",
      { preserveAspectRatio: "none", tabindex: 0, role: "img", "aria-label": title },
      ...this.grid, this.area, ...this.paths, this.cursor,
    );
    const legend = lines.map((line, place) => el("span", { class: `value value-${place}` }, this.values[place], ` ${line.name}`));
    this.element = el(
      "figure",
      { class: "card chart" },
      el("figcaption", {}, el("span", { class: "name" }, title), this.when),
      el("div", { class: "values" }, ...legend),
      el("div", { class: "plot" }, this.plot, this.top),
      el("div", { class: "axis", "aria-hidden": "true" }, this.past, el("span", {}, "now")),
    );
    this.listen();
  }

  update(history) {
    this.series = this.lines.map((line) => line.points(history));
    this.end = history.end;
    this.span = history.span;
    this.plot.setAttribute("viewBox", `0 0 ${this.span} ${HEIGHT}`);
    for (const line of this.grid) line.setAttribute("x2", this.span);
    setText(this.past, `${this.span / 60} min ago`);
    this.draw();
  }

  draw() {
    const values = this.series.flat().map((point) => point.value ?? 0);
    const top = Math.min(this.most, niceTop(Math.max(this.least, HEADROOM * Math.max(...values))));
    const place = ({ time, value }) => `${round(this.span - (this.end - time))} ${round(HEIGHT * (1 - value / top))}`;
    this.series.forEach((points, number) => this.paths[number].setAttribute("d", lineOf(points, place)));
    this.area.setAttribute("d", areaOf(this.series[0], place));
    setText(this.top, this.format(top));
    this.read();
  }

  /** Show the values at the cursor, or the newest. */
  read() {
    const time = this.pointed === null ? this.end : this.end - this.span + this.pointed;
    const found = this.series.map((points) => nearest(points, time));
    found.forEach((point, number) => setText(this.values[number], textOf(point, this.format)));
    setText(this.when, this.pointed === null || !found[0] ? "" : timeOfDay(found[0].time));
    const spoken = this.lines.map((line, number) => `${line.name} ${textOf(found[number], this.format)}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.title}: ${spoken}`);
    this.cursor.setAttribute("visibility", this.pointed === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.pointed ?? 0);
  }

  listen() {
    const point = (seconds) => {
      this.pointed = seconds === null ? null : Math.min(this.span, Math.max(0, seconds));
      this.read();
    };
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      point(((event.clientX - box.left) / box.width) * this.span);
    });
    this.plot.addEventListener("pointerleave", () => point(null));
    this.plot.addEventListener("blur", () => point(null));
    this.plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -5, ArrowRight: 5 }[event.key];
      if (event.key === "Escape") point(null);
      if (!step) return;
      event.preventDefault();
      point((this.pointed ?? this.span) + step);
    });
  }
}

const round = (value) => Math.round(value * 10) / 10;
const textOf = (point, format) => (point?.value === null || point === undefined ? "–" : format(point.value));

/** Return the smallest round number that is not less. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * STEPS.find((step) => step * power >= value * 0.999);
}

/** Split points at gaps. */
function pieces(points) {
  const found = [[]];
  for (const point of points) point.value === null ? found.push([]) : found.at(-1).push(point);
  return found.filter((piece) => piece.length);
}

const lineOf = (points, place) => pieces(points).map((piece) => `M${piece.map(place).join("L")}${piece.length === 1 ? "h.01" : ""}`).join("");

function areaOf(points, place) {
  const ground = (point) => place({ time: point.time, value: 0 });
  return pieces(points).map((piece) => `M${ground(piece[0])}L${piece.map(place).join("L")}L${ground(piece.at(-1))}Z`).join("");
}

function nearest(points, time) {
  return points.reduce((best, point) => (!best || Math.abs(point.time - time) <= Math.abs(best.time - time) ? point : best), undefined);
}
