// Actions of an owner on a node: in which states, with which scope, and their effect.

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
      `The node replaces the container of ${shown(node.assignment.task_name, 63)} by a new one at its next heartbeat. ` +
      "It stays in the pool and keeps its task.",
  },
  {
    name: "drain",
    label: "Drain",
    scope: "operate",
    fits: (node) => SERVING.includes(node.state),
    happens: () =>
      "The node gets nothing new until somebody resumes it. A task that never ends is taken away at once; any other may finish " +
      "for as long as the orchestrator's settings allow.",
  },
  {
    name: "resume",
    label: "Resume",
    scope: "operate",
    fits: (node) => node.state === "draining",
    happens: () => "The drain ends, and the node is given tasks again.",
  },
  {
    name: "ban",
    label: "Ban",
    scope: "admin",
    needsReason: true,
    grave: true,
    fits: (node) => node.state !== "banned",
    happens: () =>
      "The ban is written to the ledger with the pool manager's key, and the reason with it, for everybody to read. The node leaves " +
      "the pool at once, its task is taken away, and it stays out until somebody unbans it. No stake is taken.",
  },
  {
    name: "unban",
    label: "Unban",
    scope: "admin",
    fits: (node) => node.state === "banned",
    happens: () => "The ban is lifted on the ledger; the node may be invited again.",
  },
];

/** Returns the actions for a node's state, each with whether a token of `scope` allows it. */
export function actionsFor(node, scope) {
  return ACTIONS.filter((action) => action.fits(node)).map((action) => ({
    name: action.name,
    label: action.label,
    grave: action.grave === true,
    needsReason: action.needsReason === true,
    allowed: includes(scope, action.scope),
    needs: action.scope,
    title: `${action.question ?? action.label} ${shown(node.address)}?`, // the whole: others can be made that begin and end like it
    happens: action.happens(node),
  }));
}

/** Returns the fault of a reason as text; empty if it is valid. */
export function reasonFault(reason, { needsReason }) {
  if (needsReason && reason.trim() === "")
    return "Say why: the reason stands in the node's history, and on the ledger.";
  if (reason.length > LONGEST_REASON) return `At most ${LONGEST_REASON} characters; this has ${reason.length}.`;
  return /[\u0000-\u001f\u007f]/.test(reason) ? "One line, please." : "";
}
