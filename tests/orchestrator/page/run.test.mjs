import assert from "node:assert/strict";
import { test } from "node:test";

import { curve, ticks } from "../../../orchestrator/page/core/curve.mjs";
import { verdictWords } from "../../../orchestrator/page/rows/reasons.mjs";
import { Curve, current, curveWords, stepRows, tiles } from "../../../orchestrator/page/rows/run.mjs";
import { TrainedSteps, trainedWords } from "../../../orchestrator/page/rows/trained.mjs";
import { sampleTexts, sampleWords } from "../../../orchestrator/page/rows/samples.mjs";
import { ANSWER_COLUMNS, answerRows, answerWords } from "../../../orchestrator/page/rows/answers.mjs";
import { ITEM, LONG, MARKUP, RUN, STEP, TURNED } from "./answers.mjs";

const texts = (row) => row.cells.map((cell) => cell.text);

test("the current step is the first open one that needs rollouts", () => {
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

test("steps are listed newest first, with the reward that nodes report", () => {
  const steps = [
    { ...STEP, step: 2, closed: true },
    { ...STEP, rounds: 1 },
  ];
  const rows = stepRows({ ...RUN, steps }, new Map([[2, 0.51239]]));
  assert.deepEqual(texts(rows[0]), ["3", "open, raised 1 time", "24", "8", "4", "4", "1", "8", "–"]);
  assert.deepEqual([texts(rows[1])[1], texts(rows[1])[8]], ["closed", "0.512"]);
});

test("tiles show only known values, and no run if the pool has none", () => {
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

test("a curve fetches again only steps that may still change, and keeps the others", () => {
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

test("a curve reaches the newest step, even if an answer never mentions an open step again", () => {
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

test("a curve has a line, round ticks, an end label, and a description for screen readers", () => {
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

test("equal, huge and tiny values give a valid curve", () => {
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

test("a verdict is shown with the text of its reason code", () => {
  for (const [more, words] of [
    [{}, "accepted (provisional)"],
    [{ outcome: 3, reason: 801, status: "final" }, "forged (final): computation other model"],
    [{ outcome: 2, reason: 4711 }, "rejected (provisional): reason 4711"],
    [{ outcome: null, status: "submitted" }, "no verdict yet"],
    [{ outcome: null, status: "expired" }, "expired: no validator judged it in time"],
  ])
    assert.equal(verdictWords({ ...ITEM, ...more }), words);
});

test("answers before and after stand in one row, as bounded text on one line", () => {
  const before = { version: 0, answers: [{ prompt: "1+1=", answer: "3", correct: false }, { prompt: MARKUP, answer: LONG, correct: false }] };
  const after = { version: 5, answers: [{ prompt: "1+1=", answer: "2\n2", correct: true }, { prompt: MARKUP, answer: TURNED, correct: false }] };
  const rows = answerRows({ before, after });
  assert.equal(rows[0].cells.length, ANSWER_COLUMNS.length);
  assert.deepEqual(texts(rows[0]), ["1+1=", "wrong: 3", "right: 2 ↵ 2"]);
  assert.equal(texts(rows[1])[0], MARKUP);
  assert.ok(texts(rows[1])[1].length < 600);
  assert.ok(!texts(rows[1])[2].includes("\u202e"));
  assert.match(answerWords({ before, after }), /version 0: 0 of 2 answers right; after, version 5: 1 of 2 answers right/);
});

test("without an evaluation there are no answers, and after one both columns are of it", () => {
  assert.deepEqual(answerRows({}), []);
  assert.deepEqual(answerRows({ before: null, after: null }), []);
  assert.equal(answerWords({ before: null, after: null }), "");
  const only = { version: 0, answers: [{ prompt: "1+1=", answer: "2", correct: true }] };
  assert.deepEqual(texts(answerRows({ before: only, after: only })[0]), ["1+1=", "right: 2", "right: 2"]);
});

test("curves of the trainer continue at the last step, and begin anew if the trainer went back", () => {
  const held = new TrainedSteps();
  assert.equal(held.first, null);
  held.take([], null);
  const steps = Array.from({ length: 600 }, (_, step) => ({ step, loss: step / 10, kl: null, entropy: step < 300 ? 1 : undefined }));
  held.take(steps.slice(0, 400), null);
  held.take([{ step: 399, loss: 7 }, ...steps.slice(400)], held.first);
  assert.equal(held.steps.length, 500);
  assert.deepEqual(held.points("loss").slice(298, 301), [{ x: 398, y: 39.8 }, { x: 399, y: 7 }, { x: 400, y: 40 }]);
  assert.deepEqual([held.points("kl"), held.points("entropy").length], [[], 200]);
  assert.equal(trainedWords(held.points("loss"), "Loss"), "Loss: 10 at step 100, 59.9 at step 599.");
  held.take([], held.first);
  assert.deepEqual([held.steps, held.first], [[], null]);
  assert.match(trainedWords(held.points("loss"), "Loss"), /has not reported/);
});

test("a tight curve shows small values, and a curve of equal values has a range", () => {
  const drawn = curve([{ x: 0, y: 0.000002 }, { x: 1, y: 0.0000123 }], { width: 500, height: 230, left: 44, bottom: 26, tight: true });
  assert.equal(drawn.end.label, "0.0000123");
  assert.deepEqual(drawn.across.map(({ label }) => label), ["0.000005", "0.00001"]);
  for (const y of [0, 1e-7, -3]) assert.ok(!curve([{ x: 0, y }, { x: 1, y }], { width: 500, height: 230, left: 44, bottom: 26, tight: true }).line.includes("NaN"));
});

test("sampled rollouts keep their lines, and hostile characters and keys are harmless", () => {
  const each = { key: `0x${"a".repeat(64)}`, group: 0, version: 2, prompt: MARKUP, answer: `one\r\ntwo\u202e\u0000${LONG}`, tokens: 1, reward: 0.5 };
  const [found] = sampleTexts([each]);
  assert.deepEqual([found.href, found.prompt], [`#work/${each.key}`, MARKUP]);
  assert.match(found.facts, /^reward 0\.5, 1 token, prompt 0 of the file, generated by version 2$/);
  assert.match(found.answer, /^one\ntwo\ufffd\ufffd/);
  assert.ok(found.answer.length < 2200);
  const wild = sampleTexts([{ ...each, key: "javascript:1", answer: "\n".repeat(999), prompt: "" }])[0];
  assert.deepEqual([wild.href, wild.prompt], ["", "–"]);
  assert.match(wild.answer, /940 more lines/);
  assert.match(sampleWords({ step: 3, samples: [each], steps: [3] }, false), /^Step 3: the best and the worst/);
  assert.match(sampleWords({ step: 9, samples: [], steps: [1, 5] }, true), /Step 9 has no samples: .* steps 1 to 5\.$/);
  assert.match(sampleWords({ step: null, samples: [], steps: [] }, false), /sent no rollouts yet/);
});
