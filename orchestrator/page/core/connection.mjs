// How it stands between this page and the orchestrator: one pure function of what happened, and what to say of it.

import { clock } from "./format.mjs";
import { words } from "./problem.mjs";

export const BEGUN = { phase: "begun", lastGoodMs: null, sinceMs: null, untilMs: null, error: null };

/** The state after an answer (`error` null) or a failure; times in milliseconds. */
export function after(state, error, nowMs) {
  if (error === null) return { phase: "well", lastGoodMs: nowMs, sinceMs: null, untilMs: null, error: null };
  const phase = { token: "refused", limited: "limited", gone: "gone" }[error.kind] ?? "gone";
  const untilMs = error.retryAfterS ? nowMs + error.retryAfterS * 1000 : null;
  const sinceMs = state.phase === phase ? state.sinceMs : nowMs;
  return { phase, lastGoodMs: state.lastGoodMs, sinceMs, untilMs, error };
}

/** Whether what is shown may be old. */
export function isStale(state) {
  return state.phase === "gone" || state.phase === "limited";
}

/** What the page says of it; empty while all is well. It counts no seconds, or a screen reader would read it out with each. */
export function said(state, nowMs) {
  const from = state.lastGoodMs === null ? "" : ` What is shown is from ${clock(state.lastGoodMs, nowMs)}.`;
  if (state.phase === "limited") {
    const when = state.untilMs === null ? "in a while" : `at ${clock(state.untilMs, nowMs)}`;
    return `The orchestrator was asked too often; this page asks again ${when}.${from}`;
  }
  if (state.phase === "gone") {
    const why = state.error.status === 0 ? "The orchestrator does not answer" : words(state.error).replace(/\.$/, "");
    return `${why}, since ${clock(state.sinceMs, nowMs)}.${from} This page goes on by itself when it is back.`;
  }
  return "";
}
