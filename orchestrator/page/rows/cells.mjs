// Cells of tables, as plain values. A row has a key and cells; a cell has text and attributes. view/table.mjs draws them.

import { short } from "../core/format.mjs";
import { nodeLink } from "../core/place.mjs";
import { shown } from "../core/text.mjs";

/** Returns a cell with `text`. Options: `title` (tooltip), `tone` (colour), `href` (fragment of this page), `number`. */
export function cell(text, { most, ...more } = {}) {
  return { text: shown(text, most), ...more };
}

export function numberCell(text) {
  return cell(text, { number: true });
}

/** Returns a cell with a node's shortened address and a link to the node's view. */
export function nodeCell(address) {
  if (!address) return cell("–");
  return cell(short(address), { title: shown(address), href: nodeLink(address), code: true });
}

/** Returns a cell with a shortened hash. */
export function hashCell(text) {
  return cell(short(text), { title: shown(text), code: true });
}
