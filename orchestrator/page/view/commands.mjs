// Numbered list of commands, each with a text and a button that copies the command.

import { button, element, say } from "./dom.mjs";

const SHOWN_MS = 2000;

export class Commands {
  constructor() {
    this.drawn = "";
    this.element = element("ol", { class: "commands" });
  }

  /** Shows `steps`, a list of `[text, command]`. */
  show(steps) {
    const state = JSON.stringify(steps);
    if (state === this.drawn) return;
    this.drawn = state;
    this.element.replaceChildren(
      ...steps.map(([text, command]) => element("li", {}, element("p", {}, text), commandLine(command))),
    );
  }
}

/** Creates a line with a command that can be copied. */
export function commandLine(command) {
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(command);
      say(copy, "Copied");
    } catch {
      say(copy, "Select and copy it"); // the browser denies access to the clipboard, as on pages without TLS
    }
    setTimeout(() => say(copy, "Copy"), SHOWN_MS);
  });
  copy.setAttribute("aria-label", `Copy the command ${command}`);
  return element("div", { class: "command" }, element("code", { class: "whole", tabindex: "0" }, command), copy);
}
