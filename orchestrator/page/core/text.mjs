// What strangers wrote, made fit to be shown. Nothing here is markup: the page sets text, never HTML.

// Control characters, halves of characters, marks that turn the direction of writing, and what nobody sees; emoji keep their look.
const STEERING = /[\p{Cc}\p{Cs}\u2028\u2029\ufff9-\ufffb]|(?![\ufe00-\ufe0f])\p{Default_Ignorable_Code_Point}/gu;
const TOWERS = /(\p{M}{3})\p{M}+/gu;

export const LINE = 200;
export const LOG_LINE = 2000;
const QUOTE = 300;
const QUOTED_LINES = 8;
const LONGEST = 8192;

/** One line of at most `most` characters, whatever the value is; what was cut off is counted. */
export function shown(value, most = LINE) {
  const text = value === null || value === undefined ? "" : String(value);
  const points = Array.from(text.slice(0, 2 * most + 2));
  const kept = points.slice(0, most).join("");
  const line = kept.replace(/\t/g, "  ").replace(STEERING, "\ufffd").replace(TOWERS, "$1");
  return text.length > kept.length ? `${line}… (${text.length - kept.length} more)` : line;
}

/** The last lines of a text of several, as one line: what a task wrote before it failed. */
export function quoted(value, most = QUOTE) {
  const lines = String(value ?? "").slice(0, LONGEST).split("\n");
  return lines.slice(0, 1).concat(lines.slice(1).slice(-QUOTED_LINES)).map((line) => shown(line, most)).join(" ↵ ");
}

/** A number, or null for anything else: what is counted or compared is a number first. */
export function numberOf(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
