// Draws a curve as SVG, with a description of its first and last value for screen readers.

import { curve } from "../core/curve.mjs";
import { element, say, shape } from "./dom.mjs";

const ROOM = { height: 230, left: 44, bottom: 26 };
const ROOM_OF_SMALL = { ...ROOM, left: 72 }; // labels such as 0.0000125
const NARROWEST = 280;

export class Chart {
  /**
   * `describe(points)` returns a sentence about the curve; `label(x)` names a value of the horizontal axis.
   *
   * With `tight`, the vertical axis shows only the range of the values, which may be far below 1.
   */
  constructor(describe, { label, tight = false } = {}) {
    this.tight = tight;
    this.room = tight ? ROOM_OF_SMALL : ROOM;
    this.describe = describe;
    this.label = label;
    this.drawn = "";
    this.svg = shape("svg", { role: "img" });
    this.words = element("p", { class: "note" });
    this.element = element("div", { class: "chart" }, this.svg, this.words);
  }

  show(points) {
    const width = Math.max(NARROWEST, this.element.clientWidth);
    const found = curve(points, { ...this.room, width, label: this.label, tight: this.tight });
    const state = JSON.stringify([width, found]);
    say(this.words, this.describe(points));
    this.svg.setAttribute("aria-label", this.words.textContent);
    this.svg.toggleAttribute("hidden", found === null);
    if (found === null || state === this.drawn) return;
    this.drawn = state;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${ROOM.height}`);
    this.svg.replaceChildren(...shapes(found, width, this.room));
  }
}

function shapes(found, width, room) {
  const right = width - 12;
  const floor = room.height - room.bottom;
  return [
    ...found.across.flatMap(({ at, label }) => [
      shape("line", { class: "grid", x1: room.left, x2: right, y1: at, y2: at }),
      shape("text", { class: "axis", x: room.left - 8, y: at + 4, "text-anchor": "end" }, label),
    ]),
    ...found.along.map(({ at, label }) =>
      shape("text", { class: "axis", x: at, y: floor + 18, "text-anchor": anchor(at, label, right) }, label),
    ),
    shape("path", { class: "line", d: found.line }),
    shape("circle", { class: "end", cx: found.end.x, cy: found.end.y, r: 4 }),
    shape(
      "text",
      { class: "last", x: found.end.x - 8, y: Math.max(12, found.end.y - 10), "text-anchor": "end" },
      found.end.label,
    ),
  ];
}

/** Returns the anchor of a label, so that it does not leave the drawing at its right end. */
function anchor(at, label, right) {
  return at + 3.5 * label.length > right + 12 ? "end" : "middle";
}
