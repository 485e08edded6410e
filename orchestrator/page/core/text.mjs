// Prepares untrusted text for display. The page sets it as text and never as HTML.

// Control characters, lone surrogates, direction marks and invisible characters; emoji sequences stay intact.
const UNSAFE = /[\p{Cc}\p{Cs}\u2028\u2029\ufff9-\ufffb]|(?![\ufe00-\ufe0f])\p{Default_Ignorable_Code_Point}/gu;
const STACKED_MARKS = /(\p{M}{3})\p{M}+/gu;

export const LINE = 200;
export const LOG_LINE = 2000;
const QUOTE = 300;
const QUOTED_LINES = 8;
const LONGEST = 8192;

/** Returns one line of at most `most` characters for any value, with the number of characters cut off. */
export function shown(value, most = LINE) {
  const text = value === null || value === undefined ? "" : String(value);
  const points = Array.from(text.slice(0, 2 * most + 2));
  const kept = points.slice(0, most).join("");
  const line = kept.replace(/\t/g, "  ").replace(UNSAFE, "\ufffd").replace(STACKED_MARKS, "$1");
  return text.length > kept.length ? `${line}… (${text.length - kept.length} more)` : line;
}

/** Returns the first and the last lines of a text in one line; it is used for the output of a failed task. */
export function quoted(value, most = QUOTE) {
  const lines = String(value ?? "").slice(0, LONGEST).split("\n");
  return lines.slice(0, 1).concat(lines.slice(1).slice(-QUOTED_LINES)).map((line) => shown(line, most)).join(" ↵ ");
}

/** Returns the lines of a text for display, each as by `shown`, with a note about further lines. */
export function lines(value, { most = LOG_LINE, mostLines = 60 } = {}) {
  const all = String(value ?? "").slice(0, LONGEST).split(/\r\n|\n/);
  const kept = all.slice(0, mostLines).map((line) => shown(line, most));
  return [...kept, ...(all.length > mostLines ? [`… (${all.length - mostLines} more lines)`] : [])].join("\n");
}

/** Returns the value if it is a finite number, else null. */
export function numberOf(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
