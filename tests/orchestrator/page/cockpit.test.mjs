import assert from "node:assert/strict";
import { test } from "node:test";

import { loginCodeOf, SESSION_ACCESS } from "../../../orchestrator/page/core/access.mjs";
import { newKey } from "../../../orchestrator/page/core/api.mjs";
import { placeOf, taskLink, workLink, workOf } from "../../../orchestrator/page/core/place.mjs";
import { checkRows, evidenceFields, evidenceRows, findingRows } from "../../../orchestrator/page/rows/evidence.mjs";
import { disputable, disputeSteps, myNodeRow, myWorkRow, stakeFields, unbondRows } from "../../../orchestrator/page/rows/me.mjs";
import { accountFields, accountRow, gasRow, moneyWarnings } from "../../../orchestrator/page/rows/money.mjs";
import { changeOf, specOf } from "../../../orchestrator/page/rows/task_form.mjs";
import { taskFields } from "../../../orchestrator/page/rows/tasks.mjs";
import { LONG, MARKUP, TURNED } from "./answers.mjs";

const KEY = `0x${"ab".repeat(32)}`;
const MONEY = {
  days_left: null,
  withdrawal: "0",
  withdrawal_ready_at_ms: null,
  chain_lag_s: 3,
  gas: [{ role: "relayer", address: "0x" + "1".repeat(40), coin: "1" }],
};
const FORM = { name: "a", image: "b", command: "", environment: "", replicas: "", priority: "0", cpus: "1", memory: "1024", gpus: "0", network: "bridge" };

test("hostile text in money, evidence, works and tasks becomes one bounded line without a link", () => {
  for (const text of [MARKUP, TURNED, LONG, null, undefined, 5]) {
    const verdicts = { accepted: text, rejected: text, forged: text, expired: text, disputes: text, disputes_lost: text };
    const account = { node: text, earned: text, slashed: text, verdicts, counted_since_ms: text };
    const evidence = {
      outcome: text, reason: text, explanation: text, words: text, validator: text, judged_at_ms: text, rows_recomputed: text,
      rows_total: text, share: null, environment: text, engine: text, verifier_engine: text, audit_hash: text,
      checks: [{ name: text, state: text, found: text, note: text }],
      findings: [{ check: text, reason: text, row: text, group: text, sample: text, position: text, what: text }],
      rows: [{ row: text, group: text, sample: text, tokens: text, reward: text, recomputed: text, figures: { [String(text)]: text } }],
    };
    const work = { key: text, node: text, step: text, worth: text, submitted_at_ms: text, status: text, outcome: 2, reason: text, explanation: text };
    const task = { state: text, reason: text, spec: { name: text, image: text, command: [text], environment: { A: text }, replicas: text, priority: text }, created_at_ms: text };
    const stake = { active: text, free: text, unbonds: [{ amount: text, matures_at_ms: text }] };
    const cells = [
      accountRow(account), gasRow({ role: text, address: text, coin: text }), myWorkRow(work, 0),
      myNodeRow({ address: text, state: text, reason: text, verdicts, earned: text, slashed: text }, 0),
      ...checkRows(evidence), ...findingRows(evidence), ...evidenceRows(evidence), ...unbondRows(stake, 0),
    ].flatMap((row) => row.cells);
    const fields = [accountFields(account, 0), evidenceFields(evidence, 0), taskFields(task, 0), stakeFields(stake)].flat().map(([, cell]) => cell);
    for (const cell of [...cells, ...fields]) {
      assert.equal(typeof cell.text, "string");
      assert.ok(cell.text.length <= 2100, `${cell.text.length}`);
      assert.doesNotMatch(cell.text, /[\u0000-\u001f\u202e\u2066\u200b]/);
      assert.ok(!cell.href, cell.href);
    }
    assert.ok(disputeSteps(work, text).every(([, command]) => !command.includes("\n")));
  }
});

test("places, links and one-time codes are exact patterns", () => {
  assert.deepEqual(placeOf(workLink(KEY)), { view: "work", node: null, key: KEY });
  assert.deepEqual(placeOf(`#work/${MARKUP}`), { view: "rollouts", node: null });
  assert.deepEqual(placeOf(taskLink("a".repeat(32))), { view: "task", node: null, key: "a".repeat(32) });
  assert.deepEqual(placeOf("#task/../x"), { view: "tasks", node: null });
  assert.deepEqual([workOf(workLink(KEY)), workOf("#"), workOf("#work/0x12"), workLink(MARKUP), taskLink(KEY)], [KEY, null, null, "", ""]);
  const code = `mlc_${"a".repeat(43)}`;
  assert.deepEqual([loginCodeOf(`#login=${code}`), loginCodeOf(`#login=${code}x`), loginCodeOf(`#${code}`)], [code, null, null]);
  assert.deepEqual([SESSION_ACCESS.read(`mse_${"a".repeat(43)}`), SESSION_ACCESS.read("mst_x")], [`mse_${"a".repeat(43)}`, null]);
  assert.match(newKey(), /^[0-9a-f]{32}$/);
});

test("only verdicts that are not final and don't accept the work are disputable", () => {
  const of = (status, outcome) => disputable({ status, outcome });
  assert.deepEqual([of("provisional", 2), of("provisional", 3), of("provisional", 1), of("final", 2), of("submitted", null)], [true, true, false, false, false]);
});

test("the owner is warned of little escrow, little coin, a withdrawal and a chain that stands still", () => {
  assert.deepEqual(moneyWarnings(MONEY, 0), []);
  const bad = { ...MONEY, days_left: 1.25, withdrawal: "5", withdrawal_ready_at_ms: 0, chain_lag_s: 900, gas: [{ ...MONEY.gas[0], coin: "0.001" }] };
  assert.equal(moneyWarnings(bad, 0).length, 4);
});

test("the forms of tasks accept exactly what the API accepts, and name the wrong field", () => {
  const { spec } = specOf({ ...FORM, command: "python\n\n-c\nprint(1)", environment: "A=b=c\nB=", replicas: "3", gpus: "2" });
  assert.deepEqual([spec.command, spec.environment, spec.replicas, spec.gpus], [["python", "-c", "print(1)"], { A: "b=c", B: "" }, 3, { count: 2 }]);
  assert.deepEqual([specOf(FORM).spec.replicas, specOf(FORM).spec.resources], ["every-node", { cpus: 1, memory_bytes: 1 << 30 }]);
  const wrong = [
    ["name", "Not", "task-name"], ["image", " ", "task-image"], ["environment", "A", "task-environment"], ["environment", "1A=b", "task-environment"],
    ["replicas", "0", "task-replicas"], ["replicas", "1.5", "task-replicas"], ["priority", "101", "task-priority"], ["priority", "", "task-priority"],
    ["cpus", "x", "task-cpus"], ["memory", "8", "task-memory"], ["gpus", "65", "task-gpus"],
  ];
  for (const [field, value, at] of wrong) assert.equal(specOf({ ...FORM, [field]: value }).field, at, `${field} ${value}`);
  assert.deepEqual(changeOf({ replicas: "", priority: "-5" }).change, { replicas: "every-node", priority: -5 });
  assert.equal(changeOf({ replicas: "2", priority: "x" }).field, "task-priority");
});
