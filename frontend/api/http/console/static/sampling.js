// Sampling: the form's controls, and what they say as fields of a request. What is left empty is the server's business.

import { byId, el } from "./dom.js";

const SLIDERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, usual: 1 },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, usual: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, usual: 0 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, usual: 0 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, usual: 0 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.5, max: 2, step: 0.05, usual: 1 },
];
const NUMBERS = [...SLIDERS.map((slider) => slider.name), "top_k", "seed", "max_tokens"];

export class Sampling {
  constructor() {
    this.form = byId("sampling");
    byId("sliders").append(...SLIDERS.map(sliderOf));
    this.form.addEventListener("submit", (event) => event.preventDefault());
  }

  get shade() {
    return this.form.elements.shade.checked;
  }

  /** Return the fields of a request, the system prompt not included; null if a control holds what it must not. */
  fields() {
    if (!this.form.reportValidity()) return null;
    const { elements } = this.form;
    const fields = {};
    for (const name of NUMBERS) if (elements[name].value !== "") fields[name] = Number(elements[name].value);
    const stops = elements.stop.value.split("\n").filter((line) => line !== "");
    if (stops.length) fields.stop = stops;
    if (elements.logprobs.checked) Object.assign(fields, { logprobs: true, top_logprobs: Number(elements.top_logprobs.value) });
    if (elements["model-choice"].value) fields.model = elements["model-choice"].value;
    return fields;
  }

  get system() {
    return this.form.elements.system.value.trim();
  }

  /** Offer these models and adapters, as /v1/models lists them, if there is a choice; what was chosen stays. */
  setModels(models) {
    const choice = byId("model-choice");
    const chosen = choice.value;
    const optionOf = ({ id }) => el("option", { value: id }, id);
    const adapters = models.filter((model) => model.parent !== null);
    choice.replaceChildren(...models.filter((model) => model.parent === null).map(optionOf));
    if (adapters.length) choice.append(el("optgroup", { label: "Adapters" }, ...adapters.map(optionOf)));
    if (models.some(({ id }) => id === chosen)) choice.value = chosen;
    byId("model-field").hidden = models.length < 2;
  }
}

/** A number and a slider that follow each other. The number may be empty; the slider then stands where most servers do. */
function sliderOf({ name, label, min, max, step, usual }) {
  const number = el("input", { name, type: "number", min, max, step, placeholder: "default", "aria-label": label });
  const slider = el("input", { type: "range", min, max, step, value: usual, tabindex: -1, "aria-hidden": "true" });
  number.addEventListener("input", () => (slider.value = number.value === "" ? usual : number.value));
  slider.addEventListener("input", () => (number.value = slider.value));
  return el("div", { class: "field slider" }, el("span", { class: "label" }, label), number, slider);
}
