// Bounded list of the pool's newest events, without duplicates.

import { clock, count } from "../core/format.mjs";
import { shown } from "../core/text.mjs";
import { cell, nodeCell } from "./cells.mjs";

const MOST = 300;
const BAD = /\.(dead|evicted|banned|failed|forged|forgery)$/;
const WARN = /\.(unhealthy|draining|stopped|rejected|lost|reverted)$/;

export const GROUPS = [
  ["", "all events"],
  ["verdict.", "verdicts"],
  ["dispute.", "disputes"],
  ["slash.", "slashes"],
  ["payout.", "payouts"],
  ["node.", "nodes"],
  ["task.", "tasks"],
  ["assignment.", "assignments"],
  ["run.", "the run"],
];

/** Returns the text above filtered events; `found` is null while they are read. */
export function wantedWords(found) {
  if (found === null) return "Reading…";
  return `${count(found.length, "event")} found, newest first; read again every few seconds.`;
}

export const COLUMNS = [
  { name: "Time" },
  { name: "Kind" },
  { name: "Node" },
  { name: "Detail", text: true },
  { name: "By" },
];

export function eventRow(event, now) {
  const tone = BAD.test(event.kind) ? "bad" : WARN.test(event.kind) ? "warn" : undefined;
  const actor = shown(event.actor);
  return {
    key: event.id,
    cells: [
      cell(clock(event.time_ms, now)),
      cell(event.kind, { tone, code: true }),
      nodeCell(event.node),
      cell(event.detail || "–"),
      cell(actor.startsWith("0x") ? actor.slice(0, 10) : actor, { title: actor }),
    ],
  };
}

/** List of events, newest first. It drops duplicates, which an interrupted stream may deliver. */
export class EventLog {
  constructor() {
    this.events = [];
    this.cursor = null;
  }

  take(event) {
    if (this.events.some((known) => known.id === event.id)) return;
    this.events.unshift(event);
    this.events.length = Math.min(this.events.length, MOST);
    this.cursor = event.id;
  }
}
