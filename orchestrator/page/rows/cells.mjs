// Tables as values: a row has a key and cells, a cell has text and attributes. view/table.mjs draws them.

import { short } from "../core/format.mjs";
import { nodeLink } from "../core/place.mjs";
import { shown } from "../core/text.mjs";

/** A cell: `text`; optional: `title` (the full text), `tone`, `href` (a fragment of this page), `number`. */
export function cell(text, { most, ...more } = {}) {
  return { text: shown(text, most), ...more };
}

export function numberCell(text) {
  return cell(text, { number: true });
}

/** A node's address with a link to its view. */
export function nodeCell(address) {
  if (!address) return cell("–");
  return cell(short(address), { title: shown(address), href: nodeLink(address), code: true });
}

/** A hash, shortened. */
export function hashCell(text) {
  return cell(short(text), { title: shown(text), code: true });
}
