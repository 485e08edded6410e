// Reads server-sent events with `fetch`, because EventSource can't send the Authorization header.

import { pauseAfter } from "./feed.mjs";
import { ApiError } from "./problem.mjs";

const MOST_CHARACTERS = 1 << 20;
const SILENCE_MS = 40_000; // the orchestrator sends at least a comment every 15 s
const BROKEN = new ApiError({ status: 0, code: "broken-stream", detail: "the stream broke off" });

/** Parses a stream of text into events, `{id, event, data}`; an event may be split over several pieces. */
export class EventParser {
  constructor() {
    this.rest = "";
  }

  push(piece) {
    this.rest += piece.replace(/\r\n?/g, "\n");
    const blocks = this.rest.split("\n\n");
    this.rest = blocks.pop();
    if (this.rest.length > MOST_CHARACTERS) throw new Error("an event without an end");
    return blocks.map(eventOf).filter((event) => event.data !== null);
  }
}

function eventOf(block) {
  const event = { id: "", event: "message", data: null };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([^:]*): ?(.*)$/s.exec(line) ?? [null, line, ""];
    if (name === "data") event.data = event.data === null ? value : `${event.data}\n${value}`;
    else if (name === "id" || name === "event") event[name] = value;
  }
  return event;
}

/**
 * Follows a stream until `signal` aborts; after an interruption it continues from the last item.
 *
 * `open(cursor)` opens the stream after a cursor; `take(value)` receives each item; `told(error)` receives an error, and
 * null when the stream is open. It throws permanent errors, such as a refused token.
 */
export async function follow({ open, take, told, signal, sleep, cursor = null }) {
  let failures = 0;
  while (!signal.aborted) {
    try {
      const response = await open(cursor);
      told(null);
      for await (const event of eventsOf(response, { signal, sleep })) {
        if (event.event === "error")
          throw new ApiError({ status: 503, code: event.data, detail: `the stream broke off: ${event.data}` });
        if (signal.aborted) return; // the caller stopped: drop the other events of the last piece
        failures = 0;
        cursor = event.id || cursor;
        take(JSON.parse(event.data));
      }
      failures += 1;
    } catch (error) {
      if (signal.aborted) return;
      const known = error instanceof ApiError ? error : BROKEN;
      if (!["gone", "limited"].includes(known.kind)) throw known;
      failures += 1;
      told(known);
      await sleep(pauseAfter(known, failures, 1000), signal);
      continue;
    }
    if (!signal.aborted) await sleep(pauseAfter(null, failures, 1000), signal);
  }
}

async function* eventsOf(response, { signal, sleep }) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    while (!signal.aborted) {
      const read = await inTime(reader.read(), { signal, sleep });
      if (read.done) return;
      yield* parser.push(decoder.decode(read.value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function inTime(reading, { signal, sleep }) {
  const heard = new AbortController();
  const silence = sleep(SILENCE_MS, AbortSignal.any([signal, heard.signal])).then(() => {
    throw new ApiError({ status: 0, code: "silent", detail: `the stream sent nothing for ${SILENCE_MS / 1000} s` });
  });
  try {
    return await Promise.race([reading, silence]);
  } finally {
    heard.abort();
  }
}
