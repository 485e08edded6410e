// Rows of the list of submitted files.

import { amount, clock } from "../core/format.mjs";
import { workLink } from "../core/place.mjs";
import { cell, hashCell, nodeCell, numberCell } from "./cells.mjs";
import { verdictTone, verdictWords } from "./reasons.mjs";

export const STATUSES = ["all", "accepted", "rejected", "pending"];

export const COLUMNS = [
  { name: "Work" },
  { name: "Node" },
  { name: "Slot", number: true },
  { name: "Version", number: true },
  { name: "Groups", number: true },
  { name: "Tokens", number: true },
  { name: "Reward", number: true },
  { name: "On the ledger" },
  { name: "Verdict", text: true },
];

export function rolloutRow(item, now) {
  return {
    key: item.key,
    cells: [
      item.outcome === null ? hashCell(item.key) : { ...hashCell(item.key), href: workLink(item.key) },
      nodeCell(item.node),
      numberCell(amount(item.index, 0)),
      numberCell(amount(item.version, 0)),
      numberCell(amount(item.groups, 0)),
      numberCell(amount(item.units, 0)),
      numberCell(amount(item.figures?.reward)),
      cell(clock(item.submitted_at_ms, now)),
      cell(verdictWords(item), { tone: verdictTone(item) }),
    ],
  };
}
