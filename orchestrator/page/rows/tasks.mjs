// Rows of the list of tasks.

import { NOTHING, clock } from "../core/format.mjs";
import { taskLink } from "../core/place.mjs";
import { quoted, shown } from "../core/text.mjs";
import { cell, numberCell } from "./cells.mjs";

const WHY = 2000;
const TONES = { running: "good", pending: "warn", failed: "bad" };

export const COLUMNS = [
  { name: "Task" },
  { name: "State" },
  { name: "Why", text: true },
  { name: "Nodes", text: true },
  { name: "Replicas", number: true },
  { name: "Priority", number: true },
  { name: "Image", text: true },
  { name: "Posted" },
];

export function taskRow(task, now) {
  const wanted =
    task.desired_state === "stopped" && task.state !== "stopped" ? `${task.state}, to be stopped` : task.state;
  return {
    key: task.id,
    cells: [
      cell(task.spec.name, { title: `${task.id}, generation ${task.generation}`, href: taskLink(task.id) }),
      cell(wanted, { tone: TONES[task.state] ?? "soft" }),
      cell(quoted(task.reason) || NOTHING, { most: WHY }),
      cell(nodesOf(task)),
      numberCell(task.spec.replicas === "every-node" ? "every node" : task.spec.replicas),
      numberCell(task.spec.priority),
      cell(task.spec.image, { title: shown(task.spec.image, 512), code: true }),
      cell(clock(task.created_at_ms, now)),
    ],
  };
}

/** Returns the number of a task's assignments by state: `3 running, 1 failed`. */
function nodesOf(task) {
  const counted = Object.entries(task.assignments ?? {}).filter(([, number]) => number > 0);
  return counted.map(([state, number]) => `${number} ${shown(state, 20)}`).join(", ") || NOTHING;
}

/** Returns all fields of one task as pairs of name and cell. */
export function taskFields(task, now) {
  const { spec } = task;
  const variables = Object.entries(spec.environment ?? {}).map(([name, value]) => `${shown(name, 63)}=${shown(value)}`);
  return [
    ["Name", cell(spec.name)],
    ["State", cell(task.state, { tone: TONES[task.state] ?? "soft" })],
    ["Why", cell(quoted(task.reason) || NOTHING, { most: WHY })],
    ["Nodes", cell(nodesOf(task))],
    ["Wanted on", cell(spec.replicas === "every-node" ? "every node that fits" : spec.replicas)],
    ["Priority", cell(spec.priority)],
    ["Image", cell(spec.image, { most: 512, code: true })],
    ["Command", cell((spec.command ?? []).join(" ") || NOTHING, { most: WHY, code: true })],
    ["Environment", cell(variables.join(", ") || NOTHING, { most: WHY })],
    ["Secrets", cell((task.secret_names ?? []).join(", ") || NOTHING)],
    ["Network", cell(spec.network ?? NOTHING)],
    ["Posted", cell(clock(task.created_at_ms, now))],
    ["Generation", cell(task.generation)],
  ];
}

/** Returns the question of the dialog that stops a task. */
export function stopQuestion(task) {
  return {
    title: `Stop ${shown(task.spec.name, 63)}?`,
    label: "Stop the task",
    grave: true,
    needsReason: false,
    withoutReason: true,
    happens: "All its nodes stop its containers within their next heartbeats, after its grace period. It can be started again.",
  };
}
