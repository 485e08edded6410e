// Rows of the list of tasks.

import { NOTHING, clock } from "../core/format.mjs";
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
      cell(task.spec.name, { title: `${task.id}, generation ${task.generation}` }),
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
