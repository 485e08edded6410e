// Polls a value of the API: one request at a time, with back-off after failures.

import { ApiError } from "./problem.mjs";

const LONGEST_PAUSE_MS = 15_000;

/** Returns the milliseconds until the next request: `Retry-After`, else a pause that doubles with each failure in a row. */
export function pauseAfter(error, failures, everyMs) {
  if (error?.retryAfterS) return Math.max(everyMs, error.retryAfterS * 1000);
  return failures === 0 ? everyMs : Math.min(LONGEST_PAUSE_MS, everyMs * 2 ** Math.min(failures, 10));
}

/** Resolves after a time, or at once when `signal` aborts. */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
}

/**
 * Keeps a value up to date: `ask(signal)` fetches it, `take(value)` receives it, `failed(error)` receives errors.
 *
 * It pauses while `paused()` returns true, and ends when `signal` aborts. `again()` fetches at once.
 */
export class Feed {
  constructor({ ask, take, failed, everyMs, signal, sleep: wait = sleep, paused = () => false }) {
    Object.assign(this, { ask, take, failed, everyMs, signal, wait, paused });
    this.failures = 0;
    this.wanted = false;
    this.waking = new AbortController();
  }

  /** Polls until `signal` aborts; the promise never rejects. */
  async run() {
    while (!this.signal.aborted) {
      let pause = this.everyMs;
      this.wanted = false;
      if (!this.paused()) pause = await this.once();
      if (this.signal.aborted) return;
      if (this.wanted) continue; // `again()` was called during the request, so its answer may belong to the previous page of a list
      const waking = (this.waking = new AbortController());
      await this.wait(pause, AbortSignal.any([this.signal, waking.signal]));
    }
  }

  again() {
    this.wanted = true;
    this.waking.abort();
  }

  async once() {
    let error = null;
    try {
      const value = await this.ask(this.signal);
      if (!this.signal.aborted) this.take(value);
      this.failures = 0;
    } catch (thrown) {
      if (this.signal.aborted) return 0;
      error = asError(thrown);
      this.failures += 1;
      this.failed(error);
    }
    return pauseAfter(error, this.failures, this.everyMs);
  }
}

function asError(thrown) {
  if (thrown instanceof ApiError) return thrown;
  console.error(thrown); // a bug of this page: the console shows its position
  return new ApiError({ status: 0, code: "page-fault", detail: "this page could not process the answer" });
}
