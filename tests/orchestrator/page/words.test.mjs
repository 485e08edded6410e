import assert from "node:assert/strict";
import { test } from "node:test";

import { ago, amount, clock, count, short, size, span } from "../../../orchestrator/page/core/format.mjs";
import { shown } from "../../../orchestrator/page/core/text.mjs";
import { LONG, MARKUP, TOWER, TURNED } from "./answers.mjs";

test("markup is shown as text", () => {
  assert.equal(shown(MARKUP), MARKUP);
});

test("control, direction and invisible characters are shown as replacement characters", () => {
  assert.equal(shown(TURNED), "harmless\ufffdtxt.exe\ufffd\ufffd");
  assert.equal(shown("a\u001b[31mb\u0000\r\nc"), "a\ufffd[31mb\ufffd\ufffd\ufffdc");
  assert.equal(shown("a\tb"), "a  b");
  assert.equal(shown("gpu\u{e0041}\u3164\u115f\u034f\u{1d173}\ud800"), `gpu${"\ufffd".repeat(6)}`);
  assert.equal(shown("❤️ 日本 שלום"), "❤️ 日本 שלום");
});

test("long text is cut, with the number of missing characters", () => {
  assert.equal(shown(LONG, 10), "xxxxxxxxxx… (4990 more)");
  assert.equal(shown("😀".repeat(20), 3).slice(0, 7), "😀😀😀…");
  assert.equal(shown(TOWER, 2000), "a\u0301\u0301\u0301", "marks are not piled up over other lines");
});

test("any value becomes one line of text", () => {
  for (const [value, line] of [
    [null, ""],
    [undefined, ""],
    [0, "0"],
    [{}, "[object Object]"],
    [["a"], "a"],
  ])
    assert.equal(shown(value), line);
});

test("durations are shown in the unit that fits their length", () => {
  for (const [seconds, words] of [
    [-5, "0 s"],
    [0, "0 s"],
    [119, "119 s"],
    [120, "2 min"],
    [7200, "2 h"],
    [7260, "2 h 1 min"],
    [200_000, "2 d"],
  ])
    assert.equal(span(seconds), words);
});

test("ages count from the orchestrator's clock, and a future time is shown as now", () => {
  for (const [moment, words] of [
    [9_500, "now"],
    [5_000, "5 s ago"],
    [20_000, "now"],
    [null, "–"],
    ["x", "–"],
  ])
    assert.equal(ago(moment, 10_000), words);
});

test("a time of another day is shown with its date, and an invalid number as nothing", () => {
  const noon = new Date(2026, 10, 22, 12, 3, 4).getTime();
  assert.equal(clock(noon, noon), "12:03:04");
  assert.equal(clock(noon, noon + 86_400_000), "2026-11-22 12:03:04");
  for (const value of [2 ** 63, -(2 ** 63), NaN, null, "1"]) assert.equal(clock(value, noon), "–");
});

test("numbers and byte sizes of any magnitude are shown briefly", () => {
  for (const [value, words] of [
    [0.87512, "0.875"],
    [1234567, "1,234,567"],
    [2.5e15, "2.5e+15"],
    [NaN, "–"],
    [undefined, "–"],
  ])
    assert.equal(amount(value), words);
  for (const [bytes, words] of [
    [0, "0 B"],
    [1536, "1.5 KiB"],
    [31 * 2 ** 30, "31 GiB"],
    [2 ** 63, "8,192 PiB"],
    [null, "–"],
  ])
    assert.equal(size(bytes), words);
  assert.deepEqual([count(1, "node"), count(2, "node")], ["1 node", "2 nodes"]);
  assert.equal(short("0x1234567890abcdef1234"), "0x1234…1234");
});
