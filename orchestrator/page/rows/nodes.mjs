// Rows of the list of nodes, and the fields of one node.

import { NOTHING, ago, amount, clock, count, size } from "../core/format.mjs";
import { LINE, quoted, shown } from "../core/text.mjs";
import { cell, nodeCell, numberCell } from "./cells.mjs";

export const SPEED = "task.tokens-per-second";
export const STATES = ["discovered", "invited", "healthy", "unhealthy", "dead", "draining", "evicted", "banned"];
const FAILED = ["failed", "restarting"];
const WHY = 2000;
const TONES = { healthy: "good", unhealthy: "warn", draining: "warn", dead: "bad", evicted: "bad", banned: "bad" };

export const COLUMNS = [
  { name: "Node" },
  { name: "State" },
  { name: "Why", text: true },
  { name: "Runs", text: true },
  { name: "Last heartbeat" },
  { name: "Tokens/s", number: true },
  { name: "Hardware", text: true },
];

/** Returns a node's row in the list of nodes. */
export function nodeRow(node, now) {
  return {
    key: node.address,
    cells: [
      nodeCell(node.address),
      stateCell(node, now),
      cell(why(node) || NOTHING, { most: WHY }),
      cell(runs(node), { title: node.assignment?.detail ? shown(quoted(node.assignment.detail), 600) : undefined }),
      cell(ago(node.last_seen_ms, now)),
      numberCell(works(node) ? amount(node.metrics?.[SPEED], 0) : NOTHING),
      cell(hardware(node.hardware), { most: 400 }),
    ],
  };
}

/** Returns a cell with a node's state, and the time at which it began as a tooltip. */
export function stateCell(node, now) {
  return cell(node.state, { tone: TONES[node.state] ?? "soft", title: `since ${clock(node.since_ms, now)}` });
}

function works(node) {
  return node.assignment !== null && node.assignment.ended_at_ms === null;
}

/** Returns the reason of a node's state, and the output of the task that failed on the node, if any. */
function why(node) {
  const held = node.assignment;
  const failed = held && FAILED.includes(held.state) && held.detail;
  const words = failed ? `${shown(held.task_name, 63)} (${shown(held.state, 20)}): ${quoted(held.detail)}` : "";
  return [shown(node.reason), words].filter(Boolean).join("; ");
}

/** Returns the name and state of the task that a node runs. */
export function runs(node) {
  if (!works(node)) return NOTHING;
  const held = node.assignment;
  const again = held.restarts ? `, restarted ${count(held.restarts, "time")}` : "";
  return `${shown(held.task_name, 63)} (${shown(held.state, 20)}${again})`;
}

/** Describes the hardware of a node: `8 cores, 32 GiB, 2 × NVIDIA H100`. */
export function hardware(machine) {
  if (!machine) return NOTHING;
  const models = new Map();
  for (const gpu of machine.gpus ?? []) models.set(gpu.model, (models.get(gpu.model) ?? 0) + 1);
  const gpus = [...models].map(([model, number]) => `${number} × ${shown(model, 60)}`);
  return [count(machine.cpu_cores, "core"), size(machine.memory_bytes), ...gpus].join(", ");
}

/** Returns all fields of one node as pairs of name and cell. */
export function nodeFields(node, now) {
  const held = node.assignment;
  const labels = Object.entries(node.labels ?? {}).map(([name, value]) => `${shown(name, 63)}=${shown(value)}`);
  return [
    ["State", cell(`${node.state}, since ${clock(node.since_ms, now)}`, { tone: TONES[node.state] ?? "soft" })],
    ["Why", cell(node.reason || NOTHING)],
    ["Last heartbeat", cell(ago(node.last_seen_ms, now))],
    ["Member on the ledger", cell(node.member ? "yes" : "no")],
    ["Provider", cell(node.provider ?? NOTHING, { code: true })],
    ["Runs", cell(runs(node))],
    ["Assignment", cell(held ? `${held.id}, generation ${held.generation}` : NOTHING, { code: true })],
    ["Report", cell(quoted(held?.detail) || NOTHING, { most: WHY })],
    [
      "Ended",
      cell(held && held.ended_at_ms !== null ? `${clock(held.ended_at_ms, now)}: ${quoted(held.ended_because)}` : NOTHING, { most: WHY }),
    ],
    ["Hardware", cell(hardware(node.hardware), { most: 1000 })],
    ["Processor", cell(node.hardware?.cpu_model ?? NOTHING)],
    ["Free disk", cell(size(node.hardware?.disk_free_bytes))],
    ["Software", cell(software(node))],
    ["Labels", cell(labels.join(", ") || NOTHING, { most: 2000 })],
  ];
}

function software(node) {
  const system = node.software;
  const parts = [
    node.worker_version && `worker ${node.worker_version}`,
    system?.operating_system,
    system?.runtimes?.join(", "),
  ];
  return (
    parts
      .filter(Boolean)
      .map((part) => shown(part, LINE))
      .join(", ") || NOTHING
  );
}

export const HISTORY_COLUMNS = [
  { name: "Time" },
  { name: "From" },
  { name: "To" },
  { name: "Cause", text: true },
  { name: "By" },
];

/** Returns the row of a node's state change; `index` counts from the oldest one, so that a row keeps its key. */
export function historyRow(entry, index, now) {
  return {
    key: `${index}:${entry.time_ms}`,
    cells: [
      cell(clock(entry.time_ms, now)),
      cell(entry.before),
      cell(entry.after, { tone: TONES[entry.after] ?? "soft" }),
      cell(entry.cause || entry.event),
      cell(entry.actor.startsWith("0x") ? entry.actor.slice(0, 10) : entry.actor, { title: shown(entry.actor) }),
    ],
  };
}

/** Returns the rows of a heartbeat's gauges, sorted by name; a value whose name ends in `-bytes` is shown as a size. */
export function metricRows(metrics) {
  const names = Object.keys(metrics).sort();
  const value = (name) => (name.endsWith("-bytes") ? size(metrics[name]) : amount(metrics[name]));
  return names.map((name) => ({ key: name, cells: [cell(name, { code: true }), numberCell(value(name))] }));
}

/** Returns the text below a page of the list, which says how many nodes it has and whether more may follow. */
export function pageWords({ found, filtered, more }) {
  if (found === 0 && more) return "No match among the nodes searched so far; continue with the next page.";
  if (found === 0) return filtered ? "No node is in this state." : "The pool knows no node yet.";
  if (filtered && more) return `${count(found, "node")} shown; further nodes were not searched yet.`;
  return more ? `${count(found, "node")} shown; there are more.` : `${count(found, "node")} shown.`;
}
