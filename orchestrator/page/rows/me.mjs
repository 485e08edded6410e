// Contents of the contributor's page: earnings, nodes, work with verdicts, and stake.

import { NOTHING, amount, clock, count, date, money, short, span } from "../core/format.mjs";
import { workLink } from "../core/place.mjs";
import { shown } from "../core/text.mjs";
import { cell, hashCell, numberCell } from "./cells.mjs";
import { stateCell } from "./nodes.mjs";
import { verdictTone, verdictWords } from "./reasons.mjs";

export const DAY_COLUMNS = [{ name: "Day (UTC)" }, { name: "Earned", number: true }];
export const NODE_COLUMNS = [
  { name: "Node" },
  { name: "State" },
  { name: "Why", text: true },
  { name: "Accepted", number: true },
  { name: "Rejected", number: true },
  { name: "Forged", number: true },
  { name: "Earned", number: true },
  { name: "Slashed", number: true },
];
export const WORK_COLUMNS = [
  { name: "Work" },
  { name: "Node" },
  { name: "Step", number: true },
  { name: "Worth", number: true },
  { name: "Submitted" },
  { name: "Verdict" },
  { name: "Reason", text: true },
  { name: "Dispute" },
];
export const UNBOND_COLUMNS = [{ name: "Amount", number: true }, { name: "Can be withdrawn", text: true }];
const DAYS_SHOWN = 14;
const REASON = 400;

export function myTiles(me) {
  return [
    { name: "earned, final", value: money(me.earned, ""), note: `MUST; ${money(me.claimed)} collected` },
    { name: "ready to collect", value: me.claimable === null ? NOTHING : money(me.claimable, ""), note: "MUST; muster worker claim" },
    { name: "accepted, not final", value: money(me.accepted_not_final, ""), note: `MUST; ${money(me.not_judged)} not judged yet` },
    { name: "slashed", value: money(me.slashed, ""), note: `MUST; ${count(me.verdicts.forged, "forged file")}` },
  ];
}

/** Returns the newest days with earnings, newest first. */
export function dayRows(days) {
  return days
    .slice(-DAYS_SHOWN)
    .reverse()
    .map((each) => ({ key: String(each.day), cells: [cell(date(each.day)), numberCell(money(each.earned))] }));
}

export function myNodeRow(node, now) {
  return {
    key: node.address,
    cells: [
      hashCell(node.address),
      stateCell(node, now),
      cell(node.reason || NOTHING),
      ...["accepted", "rejected", "forged"].map((name) => numberCell(amount(node.verdicts[name], 0))),
      numberCell(money(node.earned)),
      numberCell(money(node.slashed)),
    ],
  };
}

export function nodesWords(me) {
  const shownHere = me.nodes_total > me.nodes.length ? `; the newest ${amount(me.nodes.length, 0)} are shown` : "";
  return `${count(me.nodes_total, "node")} of yours leased slots here${shownHere}.`;
}

export function myWorkRow(work, now) {
  const link = workLink(work.key);
  return {
    key: work.key,
    cells: [
      work.outcome === null ? hashCell(work.key) : { ...hashCell(work.key), href: link },
      hashCell(work.node),
      numberCell(amount(work.step, 0)),
      numberCell(money(work.worth)),
      cell(clock(work.submitted_at_ms, now)),
      cell(verdictWords({ ...work, reason: 0 }).replace(": passed", ""), { tone: verdictTone(work) }),
      cell(work.explanation || NOTHING, { most: REASON }),
      disputable(work) ? cell("Dispute…", { href: link }) : cell(NOTHING),
    ],
  };
}

/** Returns whether the provider may dispute a verdict: it is not final, and it does not accept the work. */
export function disputable(work) {
  return work.status === "provisional" && work.outcome !== 1;
}

/** Returns the steps of a dispute, each with text and command. */
export function disputeSteps(work, challengeS) {
  const time = Number.isFinite(challengeS) ? ` Disputes are possible for ${span(challengeS)} after the verdict.` : "";
  return [
    [
      `On the machine with the node's key, run this with your reason. Other validators then decide; the pool pays the gas.${time} If they uphold a rejection, the dispute costs a tenth of the work's penalty.`,
      `muster worker dispute ${shown(work.key, 66)} --because "WHY"`,
    ],
    ["See first what it would do, and what it can cost:", `muster worker dispute ${shown(work.key, 66)} --dry-run`],
  ];
}

/** Returns the stake as pairs of name and cell. */
export function stakeFields(stake) {
  return [
    ["Active", cell(money(stake.active))],
    ["Free", cell(money(stake.free))],
    ["Locked by nodes in pools", cell(money(stake.locked_by_memberships))],
    ["Locked by open work", cell(money(stake.locked_by_work))],
    ["Unbonding", cell(money(stake.unbonding))],
    ["Unbonding takes", cell(Number.isFinite(stake.unbonding_period_s) ? span(stake.unbonding_period_s) : NOTHING)],
  ];
}

export function unbondRows(stake, now) {
  return stake.unbonds.map((each, index) => ({
    key: String(index),
    cells: [
      numberCell(money(each.amount)),
      each.matures_at_ms <= now
        ? cell("now: muster stake withdraw", { tone: "good" })
        : cell(`from ${clock(each.matures_at_ms, now)}, in ${span((each.matures_at_ms - now) / 1000)}; until then it can be slashed`),
    ],
  }));
}

/** Returns the text about the session. */
export function sessionWords(me, now) {
  return `Provider ${short(me.provider)}; this session ends at ${clock(me.session_ends_at_ms, now)}.`;
}
