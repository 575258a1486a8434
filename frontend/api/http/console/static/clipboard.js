// Clipboard: copies a text. Pages that came over plain HTTP from another machine have no clipboard API: there a selection is copied.

import { el, setText } from "./dom.js";

const SHOWN_MS = 1500;

/** Return a button that copies what `textOf` returns, and says so. */
export function copyButton(textOf) {
  const button = el("button", { class: "quiet", type: "button" }, "Copy");
  return copying(button, textOf);
}

/** Let a button copy what `textOf` returns. */
export function copying(button, textOf) {
  const usual = button.textContent;
  button.addEventListener("click", async () => {
    setText(button, (await copy(textOf(), button)) ? "Copied" : "Not copied");
    setTimeout(() => setText(button, usual), SHOWN_MS);
  });
  return button;
}

async function copy(text, beside) {
  if (!navigator.clipboard) return copySelection(text, beside);
  return navigator.clipboard.writeText(text).then(() => true, () => false);
}

/** In the dialog of the button, if it is in one: nothing outside of an open dialog can be selected. */
function copySelection(text, beside) {
  const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  beside.after(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  beside.focus();
  return done;
}
