// Errors of the orchestrator and the network, and their texts for the user.

import { shown } from "./text.mjs";

const MEDIA_TYPE = "application/problem+json";
const LONGEST_WAIT_S = 3600;
const MOST = 600;

/** An error answer, or no answer (`status` 0). */
export class ApiError extends Error {
  constructor({ status, code = "error", detail = "", hint = "", retryAfterS = null }) {
    super(detail);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.hint = hint;
    this.retryAfterS = retryAfterS;
  }

  /** Class of the error, which decides the page's reaction: `token`, `scope`, `limited`, `gone` or `refused`. */
  get kind() {
    if (this.status === 401) return "token";
    if (this.status === 403 && this.code === "scope") return "scope";
    if (this.status === 429) return "limited";
    if (this.status === 0 || this.status >= 500) return "gone";
    return "refused";
  }
}

/** Returns the error of an answer. An answer without problem JSON, such as that of a proxy, gives only a status. */
export async function errorOf(response) {
  const status = response.status;
  const retryAfterS = waitOf(response.headers.get("Retry-After"), Date.now());
  const type = (response.headers.get("Content-Type") ?? "").split(";")[0].trim().toLowerCase();
  const said = type === MEDIA_TYPE ? await response.json().catch(() => null) : null;
  if (said === null || typeof said !== "object") {
    return new ApiError({
      status,
      code: `http-${status}`,
      detail: `the answer was ${status}, without an explanation`,
      retryAfterS,
    });
  }
  const [code, detail, hint] = [said.code, said.detail, said.hint].map((text) => shown(text, MOST));
  return new ApiError({ status, code, detail, hint, retryAfterS });
}

/** Returns the error of a request that got no answer. */
export function noAnswer(error) {
  const late = error?.name === "TimeoutError";
  return new ApiError({ status: 0, code: "no-answer", detail: late ? "no answer in time" : "no connection to the orchestrator" });
}

/** Returns the error of a change. Without an answer of the orchestrator, a hint says that the change may have been made. */
export function perhapsDone(error) {
  if (error.status !== 0 && !["http-502", "http-504"].includes(error.code)) return error;
  const { status, code, detail, retryAfterS } = error;
  return new ApiError({ status, code, detail, retryAfterS, hint: "the change may have been made: check the node's state before you try again" });
}

/** Returns the seconds of a `Retry-After` header, a number or a date; null if there is none. */
export function waitOf(header, now) {
  if (header === null || header.trim() === "") return null;
  const seconds = /^\d+$/.test(header.trim()) ? Number(header) : (Date.parse(header) - now) / 1000;
  return Number.isFinite(seconds) ? Math.min(LONGEST_WAIT_S, Math.max(1, Math.ceil(seconds))) : null;
}

/** Returns the text for a refused token. */
export function tokenWords(error) {
  if (error.code === "no-token")
    return "The request reached the orchestrator without a token. Check whether a proxy removes the Authorization header.";
  return (
    "The orchestrator does not know this token. Check that it is complete and belongs to this pool. If it was removed from the settings, " +
    "create another with `muster token new`, add its hash under [[orchestrator.tokens]] and restart the orchestrator."
  );
}

/** Returns one or two sentences: what happened, and what to do. */
export function words(error) {
  if (error.kind === "token") return tokenWords(error);
  const what = error.detail || `the answer was ${error.status}`;
  return error.hint ? `${sentence(what)} ${sentence(error.hint)}` : sentence(what);
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
