import assert from "node:assert/strict";
import { test } from "node:test";

import { date, money, moneyNumber } from "../../../orchestrator/page/core/format.mjs";
import { countedWords, earningPoints, earningWords, joinSteps, publicTiles, stateWords, termFields } from "../../../orchestrator/page/rows/public.mjs";
import { MARKUP } from "./answers.mjs";

const SUMMARY = {
  pool_id: 7,
  run: "main",
  url: "https://pool.example",
  time_ms: 0,
  active: true,
  nodes_live: 3,
  nodes_members: 1,
  version: null,
  counted_since_ms: 0,
  earned: "1234567.123456789",
  verdicts: { accepted: 5, rejected: 1, forged: 0 },
  terms: null,
};

test("amounts keep four decimals, or the first four digits of small ones; everything else is no amount", () => {
  const cases = [
    ["1234567.123456789", "1,234,567.1234 MUST"],
    ["0.000000123456", "0.0000001234 MUST"],
    ["0.000000000000000007", "< 0.000000001 MUST"],
    ["0.000", "0 MUST"],
    ["-12.5", "-12.5 MUST"],
    ["100", "100 MUST"],
    ["7.00001", "7 MUST"],
    ["123456789012345678901234567890", "123,456,789,012,345,678,901,234,567,890 MUST"],
    ["1e5", "–"],
    ["1,5", "–"],
    ["", "–"],
    [MARKUP, "–"],
    [5, "–"],
    [null, "–"],
  ];
  for (const [text, expected] of cases) assert.equal(money(text), expected);
  assert.deepEqual([moneyNumber("0.5"), moneyNumber("x"), moneyNumber(undefined)], [0.5, null, null]);
  assert.deepEqual([date(20_000), date(null), date(1e12)], ["2024-10-04", "–", "–"]);
});

test("a pool without terms, version and payments is shown without figures", () => {
  const tiles = publicTiles(SUMMARY);
  assert.deepEqual(tiles.map((tile) => tile.value), ["3", "none yet", "5", "1,234,567.1234"]);
  assert.deepEqual(termFields(null), []);
  assert.match(countedWords(SUMMARY, 0), /^Nothing was counted yet/);
  assert.match(stateWords({ ...SUMMARY, active: false }, 0), /it accepts no work/);
  assert.deepEqual(earningPoints([]), []);
  assert.equal(earningWords([]), "Nothing was paid yet.");
});

test("days without payments count as 0, and a gap of centuries does not make a long curve", () => {
  const day = (number, earned) => ({ day: number, earned });
  assert.deepEqual(earningPoints([day(12, "2"), day(10, "1")]), [{ x: 10, y: 1 }, { x: 11, y: 0 }, { x: 12, y: 2 }]);
  assert.equal(earningPoints([day(0, "1"), day(4e9, "1")]).length, 92);
  assert.match(earningWords(earningPoints([day(20_000, "1"), day(20_001, "3")])), /the most 3 MUST on 2024-10-05/);
});

test("the commands name the pool's URL, in one line", () => {
  const commands = joinSteps({ ...SUMMARY, url: "https://pool.example\nrm -rf ~" }).map(([, command]) => command);
  assert.ok(commands.every((command) => !command.includes("\n")));
  assert.ok(joinSteps(SUMMARY)[1][1].startsWith("muster worker init https://pool.example --rpc RPC_URL --dry-run"));
});
