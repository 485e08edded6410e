// View that asks for a token, checks it, and explains a refusal.

import { NO_TOKEN, tokenIn } from "../core/access.mjs";
import { ApiError, words } from "../core/problem.mjs";
import { element, say, show } from "./dom.mjs";

const HOW = [
  [
    "muster token new",
    "prints a token once, and the hash to add to the orchestrator's settings, under [[orchestrator.tokens]] with a name and a scope",
  ],
  ["cat .devnet/owner-token", "shows the token that a devnet created at its start"],
];

/** Creates the form. `attempt(token)` signs in, or throws an ApiError. `why` says why the last session ended. */
export function signIn({ attempt, why = "" }) {
  const field = element("input", {
    id: "token",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    autocapitalize: "off",
  });
  const fault = element("p", { class: "fault", role: "alert", hidden: why === "" }, why);
  const go = element("button", { type: "submit", class: "main" }, "Show the pool");
  const form = element("form", { class: "signin" }, element("label", { for: "token" }, "Token"), field, go, fault);

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = tokenIn(field.value);
    const refuse = (text) => {
      say(fault, text);
      show(fault, true);
      field.focus();
    };
    if (token === null) return refuse(NO_TOKEN);
    go.disabled = true;
    try {
      await attempt(token);
      field.value = "";
    } catch (error) {
      refuse(error instanceof ApiError ? words(error) : "This page could not process the answer.");
    } finally {
      go.disabled = false;
    }
  });

  const how = HOW.map(([command, does]) => element("li", {}, element("code", {}, command), ` ${does}`));
  return {
    field,
    element: element(
      "section",
      { class: "card narrow", "aria-labelledby": "about-token" },
      element("h2", { id: "about-token" }, "Sign in"),
      element(
        "p",
        {},
        "This page shows a pool to its owner. It needs a token of the pool's API: scope read to view the pool, operate or admin to act on nodes.",
      ),
      form,
      element("ul", { class: "note" }, how),
      element(
        "p",
        { class: "note" },
        "The token stays in this tab until you close it or say “Forget the token”. The page sends it only to this orchestrator, in the Authorization header.",
      ),
    ),
  };
}
