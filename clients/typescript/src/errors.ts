/** Errors of this client. */

/** A value, signature or answer is invalid. `code` is the same as in protocol/vectors.json. */
export class InvalidError extends Error {
  override readonly name = "InvalidError";

  constructor(
    message: string,
    readonly code: string,
  ) {
    super(message);
  }
}

/** A service answered with a problem (RFC 9457). */
export class ProblemError extends Error {
  override readonly name = "ProblemError";

  constructor(
    /** HTTP status. */
    readonly status: number,
    /** Stable name of the problem. */
    readonly code: string,
    readonly detail: string,
    /** Next step for the user. */
    readonly hint: string,
    /** Whether the same call may succeed later. */
    readonly retryable: boolean,
    /** Seconds to wait before a retry. */
    readonly retryAfter: number | undefined,
  ) {
    super(`${detail}${hint === "" ? "" : `: ${hint}`}`);
  }

  /** Converts the body of an error response. */
  static of(status: number, body: string): ProblemError {
    let found: Record<string, unknown> = {};
    try {
      found = JSON.parse(body) as Record<string, unknown>;
    } catch {
      // a proxy may have answered in its own format
    }
    const text = (name: string): string => (typeof found[name] === "string" ? found[name] : "");
    const after = found["retry_after"];
    return new ProblemError(
      status,
      text("code") || "error",
      text("detail") || `the service answered ${status}`,
      text("hint"),
      found["retryable"] === true,
      typeof after === "number" ? after : undefined,
    );
  }
}
