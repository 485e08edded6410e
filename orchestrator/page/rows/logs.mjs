// The log of a node's task: the newest lines, bounded, each once.

import { clock } from "../core/format.mjs";
import { LOG_LINE, shown } from "../core/text.mjs";

export const MOST_LINES = 1000;

/** A line as it is shown; what was dropped before it is said by the worker in a line of its own. */
export function logLine(line, now) {
  return {
    key: line.sequence,
    time: clock(line.time_ms, now),
    stream: shown(line.stream, 10),
    text: shown(line.text, LOG_LINE),
  };
}

/** Where to go on: the number after the last line that was seen. */
export function following(line) {
  return line.sequence + 1;
}
