// Table that on an update changes only the cells that differ, so that focus and selection stay.
//
// Roles are set explicitly, because on a narrow screen CSS shows rows as cards, which removes their implicit roles.

import { element, say, show } from "./dom.mjs";

export class Table {
  constructor({ caption, columns, empty, slim = false }) {
    this.columns = columns;
    this.rows = new Map();
    const heads = columns.map((column) =>
      element("th", { scope: "col", role: "columnheader", class: kindOf(column) }, column.name),
    );
    this.body = element("tbody", { role: "rowgroup" });
    this.table = element(
      "table",
      { role: "table", class: slim ? "slim" : null, hidden: true },
      element("caption", { class: "unseen" }, caption),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads)),
      this.body,
    );
    this.empty = element("p", { class: "note", hidden: true }, empty);
    const scroll = element(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      this.table,
    );
    this.element = element("div", {}, scroll, this.empty);
  }

  /** Shows rows from rows/*.mjs. Without rows it shows `empty`, the text for an empty table. */
  show(rows, empty) {
    if (empty !== undefined) say(this.empty, empty);
    show(this.empty, rows.length === 0);
    show(this.table, rows.length > 0);
    const kept = new Map();
    let before = null;
    for (const row of rows) {
      const drawn = this.rows.get(row.key) ?? newRow(this.columns);
      drawn.cells.forEach((target, index) => drawCell(target, row.cells[index]));
      const place = before === null ? this.body.firstElementChild : before.nextElementSibling;
      if (place !== drawn.element) this.body.insertBefore(drawn.element, place);
      kept.set(row.key, drawn);
      before = drawn.element;
    }
    for (const [key, drawn] of this.rows) if (kept.get(key) !== drawn) drawn.element.remove();
    this.rows = kept;
  }
}

function kindOf(column) {
  return column.number ? "number" : column.text ? "text" : null;
}

function newRow(columns) {
  const cells = columns.map((column) => {
    const content = element("span");
    return { content, td: element("td", { role: "cell", "data-name": column.name, class: kindOf(column) }, content) };
  });
  return {
    cells,
    element: element(
      "tr",
      { role: "row" },
      cells.map((each) => each.td),
    ),
  };
}

function drawCell(target, cell) {
  const wanted = cell.href ? "A" : "SPAN";
  if (target.content.tagName !== wanted) {
    const made = element(wanted.toLowerCase());
    target.content.replaceWith(made);
    target.content = made;
  }
  dress(target.content, cell);
}

/** Applies the text, tone, tooltip and link of a cell to an element. */
export function dress(target, cell) {
  say(target, cell.text);
  set(target, "title", cell.title);
  set(target, "href", cell.href || undefined);
  set(target, "class", [cell.tone && `tone ${cell.tone}`, cell.code && "code"].filter(Boolean).join(" ") || undefined);
}

function set(target, name, value) {
  if (value === undefined) target.removeAttribute(name);
  else if (target.getAttribute(name) !== value) target.setAttribute(name, value);
}
