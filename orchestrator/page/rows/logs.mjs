// The log of a node's task: the newest lines, bounded, without duplicates.

import { clock } from "../core/format.mjs";
import { LOG_LINE, shown } from "../core/text.mjs";

export const MOST_LINES = 1000;

/** A displayed line; the worker reports dropped lines in a line of their own. */
export function logLine(line, now) {
  return {
    key: line.sequence,
    time: clock(line.time_ms, now),
    stream: shown(line.stream, 10),
    text: shown(line.text, LOG_LINE),
  };
}

/** Position to continue from: the number after the last received line. */
export function following(line) {
  return line.sequence + 1;
}
