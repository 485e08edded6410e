// Row of boxes with one figure each.

import { element, say, show } from "./dom.mjs";

export class Tiles {
  constructor() {
    this.boxes = [];
    this.element = element("div", { class: "tiles" });
  }

  /** Shows `wanted`, a list of `{name, value, note}`. */
  show(wanted) {
    while (this.boxes.length < wanted.length) {
      const box = { name: element("span"), value: element("strong"), note: element("small") };
      box.tile = element("div", { class: "tile" }, box.name, box.value, box.note);
      this.boxes.push(box);
      this.element.append(box.tile);
    }
    this.boxes.forEach((box, index) => {
      show(box.tile, index < wanted.length);
      if (index < wanted.length) ["name", "value", "note"].forEach((part) => say(box[part], wanted[index][part]));
    });
  }
}
