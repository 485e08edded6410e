import assert from "node:assert/strict";
import { test } from "node:test";

import { curve, ticks } from "../../../orchestrator/page/core/curve.mjs";
import { verdictWords } from "../../../orchestrator/page/rows/reasons.mjs";
import { Curve, current, curveWords, stepRows, tiles } from "../../../orchestrator/page/rows/run.mjs";
import { ITEM, RUN, STEP } from "./answers.mjs";

const texts = (row) => row.cells.map((cell) => cell.text);

test("the step that is worked on is the first open one that wants anything", () => {
  const steps = [
    { ...STEP, step: 1, closed: true, need: 0 },
    { ...STEP, step: 2, need: 0 },
    { ...STEP, step: 3 },
  ];
  assert.equal(current({ ...RUN, steps }).step, 3);
  assert.equal(current({ ...RUN, steps: steps.slice(0, 2) }).step, 2);
  assert.equal(current({ ...RUN, steps: steps.slice(0, 1) }).step, 1);
  assert.equal(current(RUN), null);
});

test("steps stand newest first, with what nodes say of their reward", () => {
  const steps = [
    { ...STEP, step: 2, closed: true },
    { ...STEP, rounds: 1 },
  ];
  const rows = stepRows({ ...RUN, steps }, new Map([[2, 0.51239]]));
  assert.deepEqual(texts(rows[0]), ["3", "open, raised 1 time", "24", "8", "4", "4", "1", "8", "–"]);
  assert.deepEqual([texts(rows[1])[1], texts(rows[1])[8]], ["closed", "0.512"]);
});

test("tiles say what is known, and nothing of a run that is not there", () => {
  const pool = { nodes_expected: 3, nodes_known: 4, removals_waiting: 1, tasks_open: 1 };
  assert.deepEqual(tiles(null, null), []);
  assert.deepEqual(
    tiles(pool, null).map((tile) => tile.value),
    ["3", "1"],
  );
  const run = { ...RUN, steps: [STEP], checkpoint: { version: 7, digest: `0x${"d".repeat(64)}`, relays: [] } };
  assert.deepEqual(
    tiles(pool, run).map((tile) => tile.value),
    ["3", "1", "7", "8", "≤ 2", "0"],
  );
});

test("a curve asks again only for what may still change, and keeps what it has", () => {
  const held = new Curve();
  assert.equal(held.first, null);
  const items = Array.from({ length: 30 }, (_, step) => ({
    step,
    closed: step < 28,
    files: 1,
    reward: step / 30,
    length: null,
  }));
  held.take(items);
  assert.equal(held.first, 20);
  held.take([{ ...items[29], reward: 0.5 }]);
  assert.equal(held.rewards.get(29), 0.5);
  assert.equal(held.points("length").length, 0);
  held.take(Array.from({ length: 700 }, (_, step) => ({ ...items[0], step: step + 100 })));
  assert.equal(held.steps.size, 500);
});

test("a curve comes to the newest step, although one that it saw open is never told of again", () => {
  const items = Array.from({ length: 100 }, (_, step) => ({
    step: step + 10,
    closed: true,
    files: 1,
    reward: 0.5,
    length: null,
  }));
  const held = new Curve();
  held.take([{ ...items[0], step: 9, closed: false }, ...items]);
  assert.equal(held.first, 101);
});

test("a curve has a line, round ticks and an end, and words for who does not see it", () => {
  const points = [0, 1, 2, 3].map((x) => ({ x, y: x / 4 }));
  const found = curve(points, { width: 400, height: 200, left: 40, bottom: 30 });
  assert.match(found.line, /^M40 170L\d/);
  assert.deepEqual(
    found.across.map((tick) => tick.label),
    ["0", "0.25", "0.5", "0.75", "1"],
  );
  assert.deepEqual(
    found.along.map((tick) => tick.label),
    ["0", "1", "2", "3"],
  );
  assert.equal(found.end.label, "0.75");
  assert.equal(
    curveWords(points, "reward"),
    "Mean reward of accepted files, as reported by nodes: 0 at step 0, 0.75 at step 3.",
  );
  assert.equal(curve(points.slice(0, 1), { width: 400, height: 200, left: 40, bottom: 30 }), null);
});

test("no values break a curve", () => {
  for (const ys of [
    [1, 1],
    [-1e9, 1e9],
    [0, 1e-12],
    [999999998, 999999998.0000001],
    [5e8, 5e8 + 6e-8],
    [-1e9, -1e9 + 2.4e-7],
    [1e6, 1e6 + 2e-3],
    [1e308, -1e308].map((y) => y / 1e300),
  ]) {
    const found = curve(
      ys.map((y, x) => ({ x, y })),
      { width: 400, height: 200, left: 40, bottom: 30 },
    );
    assert.doesNotMatch(JSON.stringify(found), /null|NaN/);
    assert.ok(found.across.length >= 1 && found.across.length <= 7, String(found.across.length));
  }
  assert.ok(ticks(0, 3e9).length <= 7);
});

test("a verdict says its reason, as the ledger numbers it", () => {
  for (const [more, words] of [
    [{}, "accepted (provisional)"],
    [{ outcome: 3, reason: 801, status: "final" }, "forged (final): computation other model"],
    [{ outcome: 2, reason: 4711 }, "rejected (provisional): reason 4711"],
    [{ outcome: null, status: "submitted" }, "no verdict yet"],
    [{ outcome: null, status: "expired" }, "expired: no validator judged it in time"],
  ])
    assert.equal(verdictWords({ ...ITEM, ...more }), words);
});
