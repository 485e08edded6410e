// Section of the page with a heading and a line for errors.

import { words } from "../core/problem.mjs";
import { element, say, show } from "./dom.mjs";

export class Panel {
  constructor(title, ...children) {
    const id = `about-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
    this.fault = element("p", { class: "fault", hidden: true });
    this.element = element("section", { "aria-labelledby": id }, element("h2", { id }, title), this.fault, ...children);
  }

  /** Shows the last error; null clears it. */
  failed(error) {
    say(this.fault, error === null ? "" : `The latest read failed. ${words(error)}`);
    show(this.fault, error !== null);
  }
}

/** List of names with values. */
export class Fields {
  constructor() {
    this.values = new Map();
    this.element = element("dl");
  }

  /** Shows `pairs` of name and cell; all calls have the same names. */
  show(pairs, dress) {
    for (const [name, cell] of pairs) {
      if (!this.values.has(name)) {
        const value = element("span");
        this.values.set(name, value);
        this.element.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
      }
      dress(this.values.get(name), cell);
    }
  }
}
