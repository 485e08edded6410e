// Dialog that confirms an action on a node: it shows the effect and asks for a reason.

import { LONGEST_REASON, reasonFault } from "../rows/actions.mjs";
import { words } from "../core/problem.mjs";
import { button, element, say, show } from "./dom.mjs";

/**
 * Shows the dialog. When the user confirms, it awaits `act(reason)`, and shows the error if that fails.
 *
 * An action `withoutReason` asks for none. Resolves to true if the action succeeded.
 */
export function confirm(action, act) {
  const reason = element("input", { id: "reason", type: "text", autocomplete: "off", maxlength: LONGEST_REASON });
  const fault = element("p", { class: "fault", role: "alert", hidden: true });
  const cancel = button("Cancel", () => dialog.close());
  const go = element("button", { type: "submit", class: action.grave ? "grave" : "main" }, action.label);
  const label = element("label", { for: "reason" }, action.needsReason ? "Reason (required)" : "Reason (optional)");
  const form = element("form", {}, ...(action.withoutReason ? [] : [label, reason]), fault, element("div", { class: "buttons" }, cancel, go));
  const dialog = element(
    "dialog",
    { "aria-labelledby": "question" },
    element("h2", { id: "question" }, action.title),
    element("p", {}, action.happens),
    form,
  );
  let done = false;

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wrong = reasonFault(reason.value, action);
    say(fault, wrong);
    show(fault, wrong !== "");
    if (wrong !== "") return reason.focus();
    go.disabled = true;
    say(go, "In progress…");
    try {
      await act(reason.value.trim());
      done = true;
      dialog.close();
    } catch (error) {
      say(fault, words(error));
      show(fault, true);
    } finally {
      go.disabled = false;
      say(go, action.label);
    }
  });

  document.body.append(dialog);
  dialog.showModal();
  (action.needsReason ? reason : cancel).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
  });
}
