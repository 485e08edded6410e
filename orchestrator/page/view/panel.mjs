// A part of the page with a heading, and a line that says what of it could not be read.

import { words } from "../core/problem.mjs";
import { element, say, show } from "./dom.mjs";

export class Panel {
  constructor(title, ...children) {
    const id = `about-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
    this.fault = element("p", { class: "fault", hidden: true });
    this.element = element("section", { "aria-labelledby": id }, element("h2", { id }, title), this.fault, ...children);
  }

  /** Says what went wrong last; null when it goes well. */
  failed(error) {
    say(this.fault, error === null ? "" : `This could not be read just now. ${words(error)}`);
    show(this.fault, error !== null);
  }
}

/** Pairs of a name and a value. */
export class Fields {
  constructor() {
    this.values = new Map();
    this.element = element("dl");
  }

  /** `pairs` of a name and a cell, always the same names. */
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
