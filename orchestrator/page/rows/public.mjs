// Contents of the public page: tiles, ranking of providers, verdicts, terms and commands.

import { NOTHING, amount, clock, count, date, money, moneyNumber, short, span } from "../core/format.mjs";
import { shown } from "../core/text.mjs";
import { cell, numberCell } from "./cells.mjs";

export const PROVIDER_COLUMNS = [
  { name: "Rank" },
  { name: "Provider" },
  { name: "Live nodes", number: true },
  { name: "Accepted", number: true },
  { name: "Rejected", number: true },
  { name: "Forged", number: true },
  { name: "Earned", number: true },
  { name: "Slashed", number: true },
];

export const VERDICT_COLUMNS = [{ name: "Verdict" }, { name: "Number", number: true }, { name: "Meaning", text: true }];

/** Returns the text for the pool's name: `Pool 7 · main`. */
export function poolName(summary) {
  return `Pool ${amount(summary.pool_id, 0)}${summary.run ? ` · ${shown(summary.run, 63)}` : ""}`;
}

export function publicTiles(summary) {
  const { verdicts, terms } = summary;
  return [
    {
      name: "live nodes",
      value: amount(summary.nodes_live, 0),
      note: `${count(summary.nodes_members, "member")} of at most ${amount(terms?.max_nodes, 0)}`,
    },
    {
      name: "version of the model",
      value: summary.version === null ? "none yet" : amount(summary.version, 0),
      note: summary.run === null ? "this pool has no run" : "one version per training step",
    },
    { name: "accepted files", value: amount(verdicts.accepted, 0), note: `${amount(verdicts.rejected, 0)} rejected, ${amount(verdicts.forged, 0)} forged` },
    { name: "earned by nodes", value: money(summary.earned, ""), note: "MUST, final payments" },
  ];
}

/** Returns the sentence that says how old the summary is and whether the pool is open. */
export function stateWords(summary, now) {
  const open = summary.active ? "The pool accepts nodes and work." : "The pool is not active on the ledger: it accepts no work.";
  return `${open} Figures as of ${clock(summary.time_ms, now)}.`;
}

export function providerRow(provider, index) {
  return {
    key: provider.provider,
    cells: [
      cell(String(index + 1)),
      cell(short(provider.provider), { title: shown(provider.provider), code: true }),
      numberCell(amount(provider.nodes_live, 0)),
      numberCell(amount(provider.accepted, 0)),
      numberCell(amount(provider.rejected, 0)),
      { ...numberCell(amount(provider.forged, 0)), tone: provider.forged > 0 ? "bad" : undefined },
      numberCell(money(provider.earned)),
      numberCell(money(provider.slashed)),
    ],
  };
}

const VERDICTS = [
  ["accepted", "good", "The file passed all checks, and is paid when the time for disputes is over."],
  ["rejected", "warn", "The file does not meet the pool's rules: not paid, nothing slashed."],
  ["forged", "bad", "Two computations contradict the file: stake is slashed and the node is evicted."],
  ["expired", undefined, "No validator judged the file in time: not paid, nobody is blamed."],
  ["disputes", undefined, "Verdicts that a node, a provider or a validator disputed."],
  ["disputes_lost", undefined, "Disputes of a rejection that other validators upheld."],
];

export function verdictRows(verdicts) {
  return VERDICTS.map(([name, tone, meaning]) => ({
    key: name,
    cells: [cell(name.replace("_", " "), { tone }), numberCell(amount(verdicts[name], 0)), cell(meaning)],
  }));
}

/** Returns the sentence below the verdicts: since when they are counted. */
export function countedWords(summary, now) {
  const since = summary.counted_since_ms ? `Counted since ${clock(summary.counted_since_ms, now)}` : "Nothing was counted yet; counted";
  return `${since} from the events of the ledger, which anybody can read there.`;
}

/** Returns the points `{x, y}` of the daily earnings; days without earnings have 0. */
export function earningPoints(days) {
  const known = new Map(days.map((each) => [each.day, moneyNumber(each.earned)]));
  const named = [...known.keys()].filter(Number.isFinite).sort((a, b) => a - b);
  if (named.length === 0) return [];
  const first = Math.max(named[0], named.at(-1) - 91);
  return Array.from({ length: named.at(-1) - first + 1 }, (_, index) => ({ x: first + index, y: known.get(first + index) ?? 0 }));
}

/** Describes the daily earnings in a sentence, for screen readers. */
export function earningWords(points) {
  if (points.length === 0) return "Nothing was paid yet.";
  const last = points.at(-1);
  const on = `${amount(last.y, 4)} MUST on ${date(last.x)}`;
  if (points.length === 1) return `Final payments: ${on}.`;
  const most = points.reduce((one, other) => (other.y > one.y ? other : one));
  return `Final payments per day (UTC), ${date(points[0].x)} to ${date(last.x)}: the most ${amount(most.y, 4)} MUST on ${date(most.x)}; the last ${on}.`;
}

/** Returns the pool's terms as pairs of name and cell. */
export function termFields(terms) {
  if (!terms) return [];
  return [
    ["Pay per work unit", cell(money(terms.price_per_unit))],
    ["Slash per unit if forged", cell(money(terms.penalty_per_unit))],
    ["Stake per capacity", cell(money(terms.stake_per_capacity))],
    ["Capacity of a node", cell(`at least ${amount(terms.min_capacity, 0)}`)],
    ["Recomputed by validators", cell(`at least ${amount(100 * terms.audited_share, 2)} % of the work`)],
    ["First verdict within", cell(period(terms.judge_period_s))],
    ["Time for a dispute", cell(`${period(terms.challenge_period_s)} after the verdict`)],
    ["Disputes last at most", cell(period(terms.dispute_period_s))],
    ["Notice of new terms", cell(period(terms.notice_period_s))],
  ];
}

function period(seconds) {
  return Number.isFinite(seconds) ? span(seconds) : NOTHING;
}

/** Returns the steps of joining, each with text and a command; the placeholders in capitals are the reader's to fill. */
export function joinSteps(summary) {
  const url = shown(summary.url, 200);
  return [
    ["Install Muster on a Linux machine, in a clone of its repository:", "python3 -m venv ~/muster && ~/muster/bin/pip install ."],
    ["See what the pool pays and needs; this writes and sends nothing:", `muster worker init ${url} --rpc RPC_URL --dry-run`],
    [
      "Create keys, stake, register and configure. Take STAKE_MANAGER, the address of the ledger's stake contract, from the ledger's governor and not from a pool:",
      `muster worker init ${url} --rpc RPC_URL --ledger STAKE_MANAGER`,
    ],
    ["Start the worker with the command that was printed at the end, for example:", "muster worker run"],
    ["Later, open your own page with a one-time link:", "muster worker page"],
  ];
}
