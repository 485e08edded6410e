import assert from "node:assert/strict";
import { test } from "node:test";

import { BEGUN, after, isStale, said } from "../../../orchestrator/page/core/connection.mjs";
import { Feed, pauseAfter } from "../../../orchestrator/page/core/feed.mjs";
import { ApiError } from "../../../orchestrator/page/core/problem.mjs";
import { EventParser, follow } from "../../../orchestrator/page/core/stream.mjs";

const GONE = new ApiError({ status: 0, detail: "nobody answers" });
const LIMITED = new ApiError({ status: 429, retryAfterS: 20 });
const REFUSED = new ApiError({ status: 401, code: "bad-token" });

/** Returns a `sleep` that takes no time and records the requested durations. */
function clockwork() {
  const pauses = [];
  const sleep = async (ms, signal) => {
    if (ms >= 40_000) return new Promise((resolve) => signal.addEventListener("abort", resolve)); // the time limit for a silent stream never passes
    pauses.push(ms);
  };
  return { pauses, sleep };
}

test("a pause follows Retry-After, else it grows with each failure up to a limit", () => {
  assert.deepEqual(
    [0, 1, 2, 50].map((failures) => pauseAfter(failures ? GONE : null, failures, 3000)),
    [3000, 6000, 12_000, 15_000],
  );
  assert.equal(pauseAfter(LIMITED, 1, 3000), 20_000);
});

test("a feed continues after failures, reports each, and ends when its signal aborts", async () => {
  const { pauses, sleep } = clockwork();
  const end = new AbortController();
  const answers = [1, GONE, LIMITED, 2];
  const taken = [];
  const failed = [];
  const feed = new Feed({
    everyMs: 1000,
    signal: end.signal,
    sleep,
    ask: async () => {
      const next = answers.shift();
      if (next instanceof Error) throw next;
      return next;
    },
    take: (value) => taken.push(value) && value === 2 && end.abort(),
    failed: (error) => failed.push(error),
  });
  await feed.run();
  assert.deepEqual(taken, [1, 2]);
  assert.deepEqual(failed, [GONE, LIMITED]);
  assert.deepEqual(pauses, [1000, 2000, 20_000]);
});

test("a feed that is asked for a value during a request sends another request at once", async () => {
  const { pauses, sleep } = clockwork();
  const end = new AbortController();
  const taken = [];
  const feed = new Feed({
    everyMs: 1000,
    signal: end.signal,
    sleep,
    ask: async () => (taken.length === 1 ? feed.again() : undefined),
    take: () => taken.push(pauses.length) === 3 && end.abort(),
    failed: assert.fail,
  });
  await feed.run();
  assert.deepEqual(taken, [0, 1, 1]);
});

test("a paused feed sends no requests, and an answer after a feed's end is dropped", async () => {
  const { sleep } = clockwork();
  const end = new AbortController();
  let hidden = 3;
  let asked = 0;
  await new Feed({
    everyMs: 1,
    signal: end.signal,
    sleep,
    paused: () => hidden-- > 0,
    ask: async () => (asked++, end.abort()),
    take: () => assert.fail("dropped"),
    failed: assert.fail,
  }).run();
  assert.equal(asked, 1);
});

test("a lost connection is shown with its start and the age of the values; a working one shows no text", () => {
  const noon = new Date(2026, 10, 22, 12, 0, 0).getTime();
  let state = after(BEGUN, null, noon);
  assert.equal(said(state, noon), "");
  state = after(state, GONE, noon + 10_000);
  state = after(state, GONE, noon + 60_000);
  assert.ok(isStale(state));
  const words = said(state, noon + 100_000);
  for (const part of ["does not answer (since 12:00:10).", "from 12:00:00", "This page continues"])
    assert.ok(words.includes(part), words);
  assert.equal(said(state, noon + 101_000), words, "what is read out when it changes does not change each second");
  state = after(state, LIMITED, noon + 61_000);
  assert.match(
    said(state, noon + 66_000),
    /too many requests; it tries again at 12:01:21\. The values shown are from 12:00:00/,
  );
  state = after(state, null, noon + 90_000);
  assert.deepEqual([said(state, noon + 90_000), isStale(state)], ["", false]);
  assert.equal(after(state, REFUSED, noon).phase, "refused");
});

test("events are parsed completely, wherever their bytes are split", () => {
  const text =
    ': following\n\nid: 1-0\ndata: {"a":1}\n\nid: 2-0\r\nevent: error\r\ndata: x\r\ndata: y\r\n\r\ndata: cut o';
  const expected = [
    { id: "1-0", event: "message", data: '{"a":1}' },
    { id: "2-0", event: "error", data: "x\ny" },
  ];
  for (let at = 0; at <= text.length; at += 1) {
    if (text[at - 1] === "\r" && text[at] === "\n") continue; // not possible: the orchestrator ends its lines with \n
    const parser = new EventParser();
    assert.deepEqual([...parser.push(text.slice(0, at)), ...parser.push(text.slice(at))], expected);
  }
});

test("an event is delivered whatever characters a node wrote into its line", () => {
  for (const mark of ["\u2028", "\u2029", "\u0085", "\u000b", "\u000c", ": ", "\ufeff"]) {
    const [event] = new EventParser().push(`id: 7\ndata: ${JSON.stringify({ text: `a${mark}b` })}\n\n`);
    assert.deepEqual([event.id, JSON.parse(event.data).text], ["7", `a${mark}b`]);
  }
});

test("several events in one piece of the stream are all parsed", () => {
  const one = `id: 6\ndata: {"text":"${"x".repeat(2000)}"}\n\n`;
  assert.equal(new EventParser().push(one.repeat(1000)).length, 1000);
});

test("events of the last piece are dropped once the stream was ended", async () => {
  const end = new AbortController();
  const taken = [];
  const open = async () => new Response("data: 1\n\ndata: 2\n\n");
  await follow({
    open,
    take: (value) => (taken.push(value), end.abort()),
    told: () => {},
    signal: end.signal,
    ...clockwork(),
  });
  assert.deepEqual(taken, [1]);
});

test("an event without an end is refused at the size limit", () => {
  const parser = new EventParser();
  assert.throws(() => {
    for (let piece = 0; piece < 40; piece += 1) parser.push("x".repeat(1 << 16));
  }, /without an end/);
});

function stream(...pieces) {
  return new Response(pieces.join(""));
}

test("an interrupted stream continues after its last event, and reports the failure and the recovery", async () => {
  const { pauses, sleep } = clockwork();
  const end = new AbortController();
  const cursors = [];
  const told = [];
  const taken = [];
  const openings = [
    () => stream('id: 1-0\ndata: {"n":1}\n\n'),
    () => {
      throw GONE;
    },
    () => {
      throw LIMITED;
    },
    () => stream("event: error\ndata: unavailable\n\n"),
    () => stream('id: 2-0\ndata: {"n":2}\n\n'),
  ];
  await follow({
    signal: end.signal,
    sleep,
    cursor: "0-0",
    open: async (cursor) => (cursors.push(cursor), openings.shift()()),
    take: (value) => taken.push(value.n) && value.n === 2 && end.abort(),
    told: (error) => told.push(error?.status ?? null),
  });
  assert.deepEqual(taken, [1, 2]);
  assert.deepEqual(cursors, ["0-0", "1-0", "1-0", "1-0", "1-0"]);
  assert.deepEqual(told, [null, 0, 429, null, 503, null]);
  assert.ok(pauses.includes(20_000) && pauses.every((pause) => pause >= 1000), String(pauses));
});

test("a silent stream is opened again", async () => {
  const end = new AbortController();
  const silent = { body: new ReadableStream({}) };
  const openings = [silent, stream('id: 1-0\ndata: {"n":1}\n\n')];
  const sleep = async () => {};
  await follow({
    signal: end.signal,
    sleep,
    open: async () => openings.shift(),
    take: () => end.abort(),
    told: () => {},
  });
  assert.equal(openings.length, 0);
});

test("a permanent error ends a stream", async () => {
  const { sleep } = clockwork();
  const end = new AbortController();
  for (const error of [REFUSED, new ApiError({ status: 404 }), new ApiError({ status: 409 })])
    await assert.rejects(
      follow({
        signal: end.signal,
        sleep,
        open: async () => {
          throw error;
        },
        take: assert.fail,
        told: () => {},
      }),
      error,
    );
});
