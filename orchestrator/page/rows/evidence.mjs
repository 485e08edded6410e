// Evidence of a verdict: fields, checks, findings down to the row and the token, and rows. Validators write all texts.

import { NOTHING, amount, clock, short } from "../core/format.mjs";
import { shown } from "../core/text.mjs";
import { cell, hashCell, numberCell } from "./cells.mjs";
import { OUTCOMES, REASONS } from "./reasons.mjs";

const WORDS = 1000;
const TONES = { 1: "good", 2: "warn", 3: "bad" };
const STATES = { passed: "good", failed: "bad", unknown: "warn" };

export const CHECK_COLUMNS = [{ name: "Check" }, { name: "Result" }, { name: "Findings", number: true }, { name: "Note", text: true }];

export const FINDING_COLUMNS = [
  { name: "Check" },
  { name: "Reason" },
  { name: "Row", number: true },
  { name: "Group", number: true },
  { name: "Sample", number: true },
  { name: "Token", number: true },
  { name: "What", text: true },
];

export const ROW_COLUMNS = [
  { name: "Row", number: true },
  { name: "Group", number: true },
  { name: "Sample", number: true },
  { name: "Tokens", number: true },
  { name: "Reward", number: true },
  { name: "Recomputed" },
  { name: "Measurements", text: true },
];

/** Returns the fields of the evidence as pairs of name and cell. */
export function evidenceFields(evidence, now) {
  const share = evidence.share === null ? "" : `; ${amount(100 * evidence.share, 1)} % were drawn`;
  return [
    ["Verdict", cell(OUTCOMES[evidence.outcome] ?? evidence.outcome, { tone: TONES[evidence.outcome] ?? "soft" })],
    ["Reason", cell(REASONS[evidence.reason] ?? `reason ${evidence.reason}`)],
    ["Meaning", cell(evidence.explanation || NOTHING, { most: WORDS })],
    ["The validator says", cell(evidence.words || NOTHING, { most: WORDS })],
    ["Validator", hashCell(evidence.validator)],
    ["Judged", cell(clock(evidence.judged_at_ms, now))],
    ["Rows recomputed", cell(`${amount(evidence.rows_recomputed, 0)} of ${amount(evidence.rows_total, 0)}${share}`)],
    ["Environment", cell(evidence.environment || NOTHING)],
    ["Engine", cell(evidence.engine || NOTHING)],
    ["Validator's engine", cell(evidence.verifier_engine || NOTHING)],
    ["Audit file", hashCell(evidence.audit_hash)],
  ];
}

export function checkRows(evidence) {
  return evidence.checks.map((check, index) => ({
    key: `${index}`,
    cells: [
      cell(check.name),
      cell(check.state, { tone: STATES[check.state] ?? "soft" }),
      numberCell(amount(check.found, 0)),
      cell(check.note || NOTHING, { most: WORDS }),
    ],
  }));
}

export function findingRows(evidence) {
  return evidence.findings.map((finding, index) => ({
    key: `${index}`,
    cells: [
      cell(finding.check),
      cell(REASONS[finding.reason] ?? `reason ${finding.reason}`),
      ...["row", "group", "sample", "position"].map((name) => numberCell(amount(finding[name], 0))),
      cell(finding.what, { most: WORDS }),
    ],
  }));
}

export function evidenceRows(evidence) {
  return evidence.rows.map((row, index) => ({
    key: `${index}`,
    cells: [
      ...["row", "group", "sample", "tokens"].map((name) => numberCell(amount(row[name], 0))),
      numberCell(amount(row.reward)),
      cell(row.recomputed ? "yes" : "no"),
      cell(measurements(row.figures) || NOTHING, { most: WORDS }),
    ],
  }));
}

function measurements(figures) {
  return Object.entries(figures ?? {})
    .map(([name, value]) => `${shown(name, 63)} ${typeof value === "number" ? amount(value, 6) : shown(value, 60)}`)
    .join(", ");
}

/** Names a work item in a heading: its key, shortened. */
export function workTitle(key) {
  return `Work ${short(key)}`;
}
