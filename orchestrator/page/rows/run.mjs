// Overview of the run: tiles, open steps, and a curve of the metrics that nodes report for accepted files.

import { NOTHING, amount, count, short } from "../core/format.mjs";
import { shown } from "../core/text.mjs";
import { cell, nodeCell, numberCell } from "./cells.mjs";

export const STEP_COLUMNS = [
  { name: "Step" },
  { name: "State" },
  { name: "Demand", number: true },
  { name: "Accepted", number: true },
  { name: "Pending", number: true },
  { name: "Leased", number: true },
  { name: "Rejected", number: true },
  { name: "Needs", number: true },
  { name: "Mean reward", number: true },
];

/** Returns tiles with name, value and note. `run` is null if the pool has no run, or if it was not fetched yet. */
export function tiles(pool, run) {
  const found = [];
  if (pool) {
    found.push({
      name: "nodes at work",
      value: amount(pool.nodes_expected, 0),
      note: `${amount(pool.nodes_known, 0)} known`,
    });
    const waiting = pool.removals_waiting ? `${count(pool.removals_waiting, "dead node")} still on the ledger` : "";
    found.push({ name: "open tasks", value: amount(pool.tasks_open, 0), note: waiting });
  }
  if (!run) return found;
  const at = run.checkpoint;
  const step = current(run);
  found.push({
    name: "version of the policy",
    value: at ? amount(at.version, 0) : "none",
    note: at ? short(at.digest) : "",
  });
  if (step) {
    const lacks = `accepted of ${amount(step.demand, 0)} groups; ${amount(step.pending, 0)} pending, ${amount(step.leased, 0)} leased`;
    found.push({ name: `step ${amount(step.step, 0)}`, value: amount(step.accepted, 0), note: lacks });
  }
  found.push({ name: "asynchrony", value: `≤ ${amount(run.async_level, 0)}`, note: "steps ahead of the policy" });
  found.push({
    name: "waiting to be relayed",
    value: amount(run.queued_submissions, 0),
    note: "submissions for the ledger",
  });
  return found;
}

/** Returns the current step: the first open step that needs rollouts, else the first open step. */
export function current(run) {
  const open = run.steps.filter((step) => !step.closed);
  return open.find((step) => step.need > 0) ?? open[0] ?? run.steps.at(-1) ?? null;
}

/** Returns the rows of steps, newest first, with the mean reward that nodes report. */
export function stepRows(run, rewards) {
  return [...run.steps].reverse().map((step) => ({
    key: String(step.step),
    cells: [
      cell(amount(step.step, 0)),
      cell(stepState(step)),
      ...["demand", "accepted", "pending", "leased", "rejected", "need"].map((name) =>
        numberCell(amount(step[name], 0)),
      ),
      numberCell(amount(rewards.get(step.step))),
    ],
  }));
}

function stepState(step) {
  if (step.closed) return "closed";
  return step.rounds ? `open, raised ${count(step.rounds, "time")}` : "open";
}

/** Returns the reason why no slots are leased, as a sentence; empty if slots are leased. */
export function pausedWords(run) {
  return run?.paused ? `No slots are leased: ${shown(run.paused)}.` : "";
}

/** Metrics by step, for a curve. The last steps may still change, so they are fetched again and replaced. */
export class Curve {
  constructor() {
    this.steps = new Map();
  }

  /** The first step to fetch next; null to fetch the newest steps. */
  get first() {
    const last = Math.max(...this.steps.keys());
    const open = [...this.steps.values()]
      .filter((each) => !each.closed && each.step > last - MOST_OPEN)
      .map((each) => each.step);
    return this.steps.size ? Math.max(0, Math.min(last, ...open) - SETTLING) : null;
  }

  take(items) {
    for (const item of items) this.steps.set(item.step, item);
    const kept = [...this.steps.keys()].sort((a, b) => a - b);
    for (const step of kept.slice(0, Math.max(0, kept.length - MOST_STEPS))) this.steps.delete(step);
  }

  /** Returns the points `{x, y}` of a reported metric, sorted by step. */
  points(name) {
    const known = [...this.steps.values()].filter((each) => each[name] !== null && each[name] !== undefined);
    return known.sort((a, b) => a.step - b.step).map((each) => ({ x: each.step, y: each[name] }));
  }

  get rewards() {
    return new Map(this.points("reward").map((point) => [point.x, point.y]));
  }
}

const SETTLING = 8; // number of closed steps that are fetched again, because their verdicts may still be overturned
const MOST_OPEN = 50; // older steps that were open when they were fetched are closed by now
const MOST_STEPS = 500;

/** Describes a curve in a sentence, for screen readers. */
export function curveWords(points, what) {
  if (points.length < 2) return `There is no curve of ${what} yet.`;
  const [first, last] = [points[0], points.at(-1)];
  return `Mean ${what} of accepted files, as reported by nodes: ${amount(first.y)} at step ${first.x}, ${amount(last.y)} at step ${last.x}.`;
}

export const RELAY_COLUMNS = [{ name: "Relay" }, { name: "Serves at", text: true }, { name: "State" }];

/** Returns the rows of relays: those that the owner allows, then those that only the version names. */
export function relayRows(relays, run) {
  const allowed = relays.map((relay) => ({
    key: relay.relay,
    cells: [
      nodeCellOfRelay(relay.relay),
      cell(relay.url ?? NOTHING),
      relay.live ? cell("alive", { tone: "good" }) : cell(relay.url ? "silent" : "not registered", { tone: "warn" }),
    ],
  }));
  const known = new Set(relays.map((relay) => relay.url));
  const named = (run?.checkpoint?.relays ?? []).filter((url) => !known.has(url));
  return [
    ...allowed,
    ...named.map((url) => ({ key: url, cells: [cell(NOTHING), cell(url), cell("named by the version")] })),
  ];
}

function nodeCellOfRelay(address) {
  return { ...nodeCell(address), href: undefined };
}

/** Describes the curve of accepted files in a sentence, for screen readers. */
export function filesWords(points) {
  if (points.length < 2) return "There is no curve of accepted files yet.";
  const last = points.at(-1);
  return `Accepted files: ${amount(points[0].y, 0)} at step ${points[0].x}, ${amount(last.y, 0)} at step ${last.x}.`;
}
