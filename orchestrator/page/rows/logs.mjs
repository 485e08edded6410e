// Lines of the log of a node's task.

import { clock } from "../core/format.mjs";
import { LOG_LINE, shown } from "../core/text.mjs";

export const MOST_LINES = 1000;

/** Returns a log line as it is displayed. The worker reports lines that it dropped in a line of their own. */
export function logLine(line, now) {
  return {
    key: line.sequence,
    time: clock(line.time_ms, now),
    stream: shown(line.stream, 10),
    text: shown(line.text, LOG_LINE),
  };
}

/** Returns the sequence number from which a log continues after its last received line. */
export function following(line) {
  return line.sequence + 1;
}
