// The pool's money: tiles, gas accounts, and earnings and slashes of nodes.

import { NOTHING, amount, clock, count, money, short, span } from "../core/format.mjs";
import { shown } from "../core/text.mjs";
import { cell, nodeCell, numberCell } from "./cells.mjs";

const LITTLE_DAYS = 3;
const LITTLE_COIN = 0.05;
const LATE_S = 300;

export const GAS_COLUMNS = [{ name: "Account" }, { name: "Pays for", text: true }, { name: "Coin", number: true }, { name: "State" }];
export const NODE_COLUMNS = [
  { name: "Node" },
  { name: "Earned", number: true },
  { name: "Slashed", number: true },
  { name: "Accepted", number: true },
  { name: "Rejected", number: true },
  { name: "Forged", number: true },
  { name: "Expired", number: true },
];

const USES = { orchestrator: "removals of dead nodes from the ledger", relayer: "transactions of nodes: work, joins, disputes" };

export function moneyTiles(found) {
  const left = found.days_left;
  return [
    { name: "free escrow", value: money(found.free, ""), note: `MUST, of ${money(found.escrow)}; ${money(found.reserved)} reserved` },
    { name: "burn rate per day", value: money(found.burn_per_day, ""), note: "MUST, mean of the last seven days, without verdict fees" },
    { name: "days left", value: left === null ? NOTHING : amount(left, 1), note: left === null ? "nothing was paid in seven days" : "at this rate" },
    { name: "earned by nodes", value: money(found.earned, ""), note: `MUST; ${money(found.slashed)} slashed` },
    { name: "paid from escrow", value: money(found.accrued, ""), note: `MUST with fees; ${money(found.claimed)} collected` },
  ];
}

/** Returns the owner's warnings about money, as sentences. */
export function moneyWarnings(found, now) {
  const warnings = [];
  if (found.days_left !== null && found.days_left < LITTLE_DAYS)
    warnings.push(`The free escrow lasts ${amount(found.days_left, 1)} days: \`muster pool fund\` adds to it.`);
  for (const each of found.gas)
    if (Number(each.coin) < LITTLE_COIN) warnings.push(`The ${shown(each.role, 40)} ${short(each.address)} has little coin for gas: send it some.`);
  if (Number(found.withdrawal) > 0)
    warnings.push(`A withdrawal of ${money(found.withdrawal)} is announced, ready at ${clock(found.withdrawal_ready_at_ms, now)}.`);
  if (found.chain_lag_s > LATE_S) warnings.push(`The newest block is ${span(found.chain_lag_s)} old: the chain or its endpoint stands still.`);
  return warnings;
}

export function gasRow(account) {
  const little = Number(account.coin) < LITTLE_COIN;
  return {
    key: account.address + account.role,
    cells: [
      { ...nodeCell(account.address), href: undefined },
      cell(USES[account.role] ?? account.role),
      numberCell(money(account.coin, "")),
      little ? cell("little", { tone: "bad" }) : cell("enough", { tone: "good" }),
    ],
  };
}

export function accountRow(account) {
  return {
    key: account.node,
    cells: [
      nodeCell(account.node),
      numberCell(money(account.earned)),
      { ...numberCell(money(account.slashed)), tone: Number(account.slashed) > 0 ? "bad" : undefined },
      ...["accepted", "rejected", "forged", "expired"].map((name) => numberCell(amount(account.verdicts[name], 0))),
    ],
  };
}

/** Returns the account of one node as pairs of name and cell. */
export function accountFields(account, now) {
  const { verdicts } = account;
  return [
    ["Earned", cell(money(account.earned))],
    ["Slashed", cell(money(account.slashed), { tone: Number(account.slashed) > 0 ? "bad" : undefined })],
    ["Verdicts", cell(`${amount(verdicts.accepted, 0)} accepted, ${amount(verdicts.rejected, 0)} rejected, ${amount(verdicts.forged, 0)} forged`)],
    ["Not judged in time", cell(amount(verdicts.expired, 0))],
    ["Disputes", cell(`${amount(verdicts.disputes, 0)}, of which ${amount(verdicts.disputes_lost, 0)} lost`)],
    ["Counted since", cell(account.counted_since_ms ? clock(account.counted_since_ms, now) : NOTHING)],
  ];
}

/** Returns the text below the list of nodes' accounts. */
export function accountsWords(number, more) {
  return `${count(number, "node")} shown, by address${more ? "; there are more" : ""}.`;
}
