// Actions of the owner on a node: the states in which each is offered, the scope that it needs, and its effect.

import { includes } from "../core/access.mjs";
import { shown } from "../core/text.mjs";

export const LONGEST_REASON = 200;
const SERVING = ["healthy", "unhealthy"];

const ACTIONS = [
  {
    name: "restart",
    label: "Restart its task",
    question: "Restart the task of",
    scope: "operate",
    fits: (node) => node.assignment !== null && node.assignment.ended_at_ms === null,
    happens: (node) =>
      `The node replaces the container of ${shown(node.assignment.task_name, 63)} with a new one after its next heartbeat. ` +
      "It stays in the pool and keeps its task.",
  },
  {
    name: "drain",
    label: "Drain",
    scope: "operate",
    fits: (node) => SERVING.includes(node.state),
    happens: () =>
      "The node gets no new task until it is resumed. A task that is always restarted is stopped at once; any other task may " +
      "finish within the time that the orchestrator's settings allow.",
  },
  {
    name: "resume",
    label: "Resume",
    scope: "operate",
    fits: (node) => node.state === "draining",
    happens: () => "The drain ends, and the node gets tasks again.",
  },
  {
    name: "ban",
    label: "Ban",
    scope: "admin",
    needsReason: true,
    grave: true,
    fits: (node) => node.state !== "banned",
    happens: () =>
      "The ban is written to the ledger with the pool manager's key, together with the reason, which everybody can read. " +
      "The node leaves the pool at once, its task is stopped, and it can't join again until it is unbanned. No stake is slashed.",
  },
  {
    name: "unban",
    label: "Unban",
    scope: "admin",
    fits: (node) => node.state === "banned",
    happens: () => "The ban is lifted on the ledger; the node may be invited again.",
  },
];

/** Returns the actions that fit a node's state; `allowed` says whether a token of `scope` permits the action. */
export function actionsFor(node, scope) {
  return ACTIONS.filter((action) => action.fits(node)).map((action) => ({
    name: action.name,
    label: action.label,
    grave: action.grave === true,
    needsReason: action.needsReason === true,
    allowed: includes(scope, action.scope),
    needs: action.scope,
    title: `${action.question ?? action.label} ${shown(node.address)}?`, // the full address, because another one may have the same beginning and end
    happens: action.happens(node),
  }));
}

/** Returns the error text for an invalid reason; empty if the reason is valid. */
export function reasonFault(reason, { needsReason }) {
  if (needsReason && reason.trim() === "")
    return "Give a reason: it is stored in the node's history and on the ledger.";
  if (reason.length > LONGEST_REASON) return `A reason has at most ${LONGEST_REASON} characters; this one has ${reason.length}.`;
  return /[\u0000-\u001f\u007f]/.test(reason) ? "A reason has one line." : "";
}
