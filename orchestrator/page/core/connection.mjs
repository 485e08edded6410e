// State of the connection to the orchestrator, as a pure function of answers and failures, and its text for the user.

import { clock } from "./format.mjs";
import { words } from "./problem.mjs";

export const BEGUN = { phase: "begun", lastGoodMs: null, sinceMs: null, untilMs: null, error: null };

/** Returns the state after an answer (`error` is null) or after a failure; times are in milliseconds. */
export function after(state, error, nowMs) {
  if (error === null) return { phase: "well", lastGoodMs: nowMs, sinceMs: null, untilMs: null, error: null };
  const phase = { token: "refused", limited: "limited", gone: "gone" }[error.kind] ?? "gone";
  const untilMs = error.retryAfterS ? nowMs + error.retryAfterS * 1000 : null;
  const sinceMs = state.phase === phase ? state.sinceMs : nowMs;
  return { phase, lastGoodMs: state.lastGoodMs, sinceMs, untilMs, error };
}

/** Returns whether the shown values may be outdated. */
export function isStale(state) {
  return state.phase === "gone" || state.phase === "limited";
}

/** Returns the text for the user; empty while connected. It has no running counter, which screen readers would repeat. */
export function said(state, nowMs) {
  const from = state.lastGoodMs === null ? "" : ` The values shown are from ${clock(state.lastGoodMs, nowMs)}.`;
  if (state.phase === "limited") {
    const when = state.untilMs === null ? "in a while" : `at ${clock(state.untilMs, nowMs)}`;
    return `This page sent too many requests; it tries again ${when}.${from}`;
  }
  if (state.phase === "gone") {
    const why = state.error.status === 0 ? "The orchestrator does not answer" : words(state.error).replace(/\.$/, "");
    return `${why} (since ${clock(state.sinceMs, nowMs)}).${from} This page continues when the orchestrator answers again.`;
  }
  return "";
}
