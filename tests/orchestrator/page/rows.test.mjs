import assert from "node:assert/strict";
import { test } from "node:test";

import { actionsFor, reasonFault } from "../../../orchestrator/page/rows/actions.mjs";
import { EventLog, eventRow } from "../../../orchestrator/page/rows/events.mjs";
import { following, logLine } from "../../../orchestrator/page/rows/logs.mjs";
import {
  hardware,
  historyRow,
  metricRows,
  nodeFields,
  nodeRow,
  pageWords,
} from "../../../orchestrator/page/rows/nodes.mjs";
import { rolloutRow } from "../../../orchestrator/page/rows/rollouts.mjs";
import { pausedWords, relayRows, stepRows } from "../../../orchestrator/page/rows/run.mjs";
import { taskRow } from "../../../orchestrator/page/rows/tasks.mjs";
import { ITEM, RUN, STEP, LONG, MARKUP, NODE, TURNED, assignment, node } from "./answers.mjs";

const NOW = 10_000;
const texts = (row) => row.cells.map((cell) => cell.text);

const TASK = {
  id: "1".repeat(32),
  spec: { name: "rollouts", image: "r:1", replicas: "every-node", priority: 0 },
  generation: 2,
  desired_state: "running",
  state: "running",
  reason: "",
  created_at_ms: 1,
  assignments: { running: 3, failed: 1, pulling: 0 },
};
const EVENT = {
  id: "1-0",
  time_ms: 1,
  kind: "node.dead",
  detail: "it fell silent",
  actor: "liveness",
  node: NODE,
  task_id: null,
};

test("a node's row shows its state, reason, task, speed and hardware", () => {
  const works = node({ assignment: assignment({ restarts: 2 }), metrics: { "task.tokens-per-second": 359.6 } });
  assert.deepEqual(texts(nodeRow(works, NOW)), [
    "0xaBaB…aBaB",
    "healthy",
    "it sent a heartbeat",
    "rollouts (running, restarted 2 times)",
    "1 s ago",
    "360",
    "4 cores, 8 GiB",
  ]);
  const idle = node({
    state: "evicted",
    assignment: assignment({ ended_at_ms: 5 }),
    metrics: { "task.tokens-per-second": 934 },
    hardware: null,
    last_seen_ms: null,
  });
  assert.deepEqual(
    texts(nodeRow(idle, NOW)).slice(3),
    ["–", "–", "–", "–"],
    "what it measured while it worked is no speed now",
  );
});

test("GPUs are counted by model", () => {
  const gpus = ["H100", "H100", "A100"].map((model, index) => ({ index, model, memory_bytes: 1 }));
  assert.equal(hardware({ ...node().hardware, gpus }), "4 cores, 8 GiB, 2 × H100, 1 × A100");
});

test("the row of a node with a failed task quotes the task's last output lines", () => {
  const detail = `ended with exit code 1\n${"early\n".repeat(20)}bwrap: execvp /x/.venv/bin/python: <b>no</b>\u001b[2J`;
  const broken = node({ assignment: assignment({ state: "failed", detail, ended_at_ms: 5 }) });
  const why = texts(nodeRow(broken, NOW))[2];
  assert.match(why, /^it sent a heartbeat; rollouts \(failed\): ended with exit code 1 ↵ early/);
  assert.match(why, /bwrap: execvp \/x\/\.venv\/bin\/python: <b>no<\/b>\ufffd\[2J$/);
  assert.equal(why.match(/early/g).length, 7);
  const fields = Object.fromEntries(nodeFields(broken, NOW));
  assert.match(fields["Report"].text, /<b>no<\/b>/);
  assert.match(texts(taskRow({ ...TASK, reason: `1 of 2 nodes restart it: ${detail}` }, NOW))[2], /execvp/);
  assert.equal(texts(nodeRow(node({ assignment: assignment({ detail }) }), NOW))[2], "it sent a heartbeat");
});

const HOSTILE = [MARKUP, TURNED, LONG, "\u0000\n\u001b]0;x\u0007"];

test("hostile text in any field becomes one bounded line without a link", () => {
  for (const text of HOSTILE) {
    const gpus = Array.from({ length: 64 }, (_, index) => ({ index, model: text + index, memory_bytes: 1 }));
    const bad = node({
      reason: text,
      labels: Object.fromEntries(Array.from({ length: 32 }, (_, index) => [`l${index}`, text])),
      worker_version: text,
      hardware: { ...node().hardware, cpu_model: text, gpus },
      software: { operating_system: text, runtimes: [text] },
      assignment: assignment({ task_name: text, state: text, detail: text, ended_because: text }),
    });
    const rows = [
      nodeRow(bad, NOW),
      { cells: nodeFields(bad, NOW).map(([, cell]) => cell) },
      historyRow({ time_ms: 1, before: text, after: text, event: text, cause: text, actor: text }, 0, NOW),
      ...metricRows({ [text]: 1e300 }),
      eventRow({ ...EVENT, kind: text, detail: text, actor: text, node: text }, NOW),
      taskRow(
        {
          ...TASK,
          state: text,
          reason: text,
          spec: { ...TASK.spec, name: text, image: text },
          assignments: { [text]: 3 },
        },
        NOW,
      ),
      rolloutRow({ ...ITEM, key: text, node: text, status: text, outcome: 9, figures: { reward: 1e308 } }, NOW),
      ...relayRows([{ relay: text, url: text, live: false }], { checkpoint: { relays: [text] } }),
      ...stepRows({ ...RUN, steps: [{ ...STEP, demand: 1e308 }] }, new Map([[3, -1e308]])),
    ];
    for (const cell of rows.flatMap((row) => row.cells)) {
      assert.equal(typeof cell.text, "string");
      assert.ok(cell.text.length <= 2100 && (cell.title ?? "").length <= 620, `${cell.text.length}`);
      assert.doesNotMatch(cell.text + (cell.title ?? ""), /[\u0000-\u001f\u202e\u2066\u200b]/);
      assert.ok(!cell.href || /^#(node\/0x[0-9a-fA-F]{40}|task\/[0-9a-f]{32}|work\/0x[0-9a-f]{64})$/.test(cell.href), cell.href);
    }
    const line = logLine({ sequence: 0, time_ms: 1, stream: text, text }, NOW);
    assert.ok(line.text.length <= 2100 && line.stream.length < 40);
    assert.doesNotMatch(line.text + line.stream, /[\u0000-\u001f\u202e]/);
    assert.doesNotMatch(pausedWords({ paused: text }), /[\u0000-\u001f\u202e]/);
  }
});

test("a name such as __proto__ is shown like any other name", () => {
  const [row] = metricRows(JSON.parse('{"__proto__": 1}'));
  assert.equal(row.cells[0].text, "__proto__");
});

test("a gauge whose name ends in bytes is shown as a size", () => {
  const rows = metricRows({ "memory.used-bytes": 3 * 2 ** 30, "cpu.busy": 0.5 });
  assert.deepEqual(rows.map(texts), [
    ["cpu.busy", "0.5"],
    ["memory.used-bytes", "3 GiB"],
  ]);
});

test("the text below a page of nodes says whether there are more, and that a filter has found none so far", () => {
  for (const [found, says] of [
    [{ found: 0, filtered: false, more: false }, /knows no node yet/],
    [{ found: 0, filtered: true, more: false }, /in this state/],
    [{ found: 0, filtered: true, more: true }, /continue with the next page/],
    [{ found: 24, filtered: true, more: true }, /24 nodes shown; further nodes were not searched/],
    [{ found: 100, filtered: false, more: true }, /100 nodes shown; there are more/],
  ])
    assert.match(pageWords(found), says);
});

test("the list of events has no duplicates, begins with the newest, and is bounded", () => {
  const log = new EventLog();
  for (let number = 1; number <= 400; number += 1) log.take({ ...EVENT, id: `${number}-0` });
  log.take({ ...EVENT, id: "400-0" });
  assert.deepEqual([log.events.length, log.events[0].id, log.cursor], [300, "400-0", "400-0"]);
});

test("a log continues after its last line", () => {
  assert.equal(following({ sequence: 41 }), 42);
});

test("an action is offered in fitting states, describes its effect, and requires its scope", () => {
  const offered = (state, scope, held = null) =>
    actionsFor(node({ state, assignment: held }), scope).map((each) => `${each.name}${each.allowed ? "" : "!"}`);
  assert.deepEqual(offered("healthy", "admin", assignment()), ["restart", "drain", "ban"]);
  assert.deepEqual(offered("healthy", "operate", assignment()), ["restart", "drain", "ban!"]);
  assert.deepEqual(offered("unhealthy", "read", assignment({ ended_at_ms: 1 })), ["drain!", "ban!"]);
  assert.deepEqual(offered("draining", "admin"), ["resume", "ban"]);
  assert.deepEqual(offered("banned", "admin"), ["unban"]);
  assert.deepEqual(offered("dead", ""), ["ban!"]);
  const [restart] = actionsFor(node({ assignment: assignment({ task_name: TURNED }) }), "admin");
  assert.doesNotMatch(restart.happens, /\u202e/);
  const ban = actionsFor(node(), "admin").find((each) => each.name === "ban");
  assert.match(ban.happens, /ledger.*reason.*everybody/);
  assert.equal(ban.title, `Ban ${NODE}?`);
});

test("a ban requires a reason, and reasons are limited in length and to one line", () => {
  assert.match(reasonFault(" ", { needsReason: true }), /Give a reason/);
  assert.equal(reasonFault("", { needsReason: false }), "");
  assert.match(reasonFault("x".repeat(201), { needsReason: true }), /at most 200/);
  assert.match(reasonFault("a\nb", { needsReason: true }), /one line/);
  assert.equal(reasonFault("it overheats", { needsReason: true }), "");
});
