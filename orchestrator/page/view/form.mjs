// Parts of forms: labelled fields, and sending with a button that is disabled meanwhile.

import { ApiError, words } from "../core/problem.mjs";
import { element, say, show } from "./dom.mjs";

/** Creates a labelled input or textarea; `kind` is the input's type or `textarea`. */
export function field(id, label, kind, { value = "", hint = "", ...more } = {}) {
  const about = hint === "" ? null : element("span", { id: `${id}-hint`, class: "note" }, hint);
  const attributes = { id, autocomplete: "off", spellcheck: "false", "aria-describedby": about === null ? null : `${id}-hint`, ...more };
  const input = kind === "textarea" ? element("textarea", { rows: 3, ...attributes }) : element("input", { type: kind, ...attributes });
  input.value = value;
  return { input, element: element("div", { class: "labelled" }, element("label", { for: id }, label), input, about) };
}

/** Creates a form. `send()` returns `{fault, field}` for wrong values, or a promise of the sent change. */
export function sendingForm({ label, children, send }) {
  const fault = element("p", { class: "fault", role: "alert", hidden: true });
  const go = element("button", { type: "submit", class: "main" }, label);
  const form = element("form", { class: "sending" }, ...children, fault, element("div", { class: "buttons" }, go));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      const wrong = await send();
      say(fault, wrong?.fault ?? "");
      if (wrong?.field) document.getElementById(wrong.field)?.focus();
    } catch (error) {
      say(fault, error instanceof ApiError ? words(error) : "This page could not process the answer.");
    } finally {
      show(fault, fault.textContent !== "");
      go.disabled = false;
    }
  });
  return form;
}
