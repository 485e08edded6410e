// Session of the owner: holds the token, polls the API, and tracks the state of the connection.

import { Api } from "./core/api.mjs";
import { BEGUN, after, isStale } from "./core/connection.mjs";
import { Feed, sleep } from "./core/feed.mjs";
import { ApiError } from "./core/problem.mjs";
import { follow } from "./core/stream.mjs";
import { EventLog } from "./rows/events.mjs";

const EVENTS_AT_FIRST = 100;
const EVENTS_AGAIN_MS = 15_000;
const VISIBILITY_CHECK_MS = 60_000;
const EXPIRED = "events-expired"; // code of the 410 for a position whose later events were deleted
const NOT_OURS = new ApiError({ status: 0, code: "no-pool", detail: "the answer does not come from this API" });

export class Session {
  /** `refused(error)` is called when the orchestrator refuses the token; `announce(text)` informs the user. */
  constructor({ token, base, refused, announce }) {
    this.over = new AbortController();
    this.signal = this.over.signal;
    this.api = new Api({ token, base });
    this.refused = refused;
    this.announce = announce;
    this.connection = BEGUN;
    this.pool = null;
    this.ahead = 0; // the orchestrator's clock minus the browser's, in milliseconds
    this.events = new EventLog();
    this.eventsFault = null;
    this.place = new AbortController(); // aborted when the user leaves the open view
    this.feeds = new Set();
  }

  /** Returns the time of the orchestrator's clock, in Unix milliseconds. */
  now() {
    return Date.now() + this.ahead;
  }

  get scope() {
    return this.pool?.caller.scope ?? "";
  }

  /** Returns whether the pool has no run. */
  get runless() {
    return this.pool !== null && this.pool.run === null;
  }

  /** Reads the pool's overview and then polls it. Throws ApiError if the token is refused. */
  async begin() {
    this.took(await this.api.get("/v1/pool"));
    this.feed({
      everyMs: 5000,
      signal: this.signal,
      ask: (signal) => this.api.get("/v1/pool", {}, { signal }),
      take: (pool) => this.took(pool),
      failed: (error) => (this.connection = after(this.connection, error, this.now())),
    });
    this.followEvents();
  }

  end() {
    this.over.abort();
    this.place.abort();
  }

  /** Stops the polling of the last view. */
  leave() {
    this.place.abort();
    this.place = new AbortController();
  }

  /** Polls a value while the view is open (see Feed). If a request's token is refused, the session ends. */
  feed({ signal = AbortSignal.any([this.signal, this.place.signal]), failed, paused = () => false, ...more }) {
    const feed = new Feed({
      ...more,
      signal,
      paused: () => document.hidden || paused(),
      failed: (error) => this.refusedBy(error) || failed(error),
    });
    this.feeds.add(feed);
    feed.run().then(() => this.feeds.delete(feed));
    return feed;
  }

  /** Fetches all polled values at once, for example when the user returns to the tab. */
  refresh() {
    for (const feed of this.feeds) feed.again();
  }

  /** Ends the session if an error means that the token is not valid any more; returns whether it does. */
  refusedBy(error) {
    if (!(error instanceof ApiError) || error.kind !== "token") return false;
    if (!this.signal.aborted) this.refused(error);
    return true;
  }

  took(pool) {
    if (!Number.isFinite(pool?.time_ms) || !pool.caller) throw NOT_OURS; // for example the sign-in page of a proxy
    this.pool = pool;
    this.ahead = pool.time_ms - Date.now();
    if (isStale(this.connection)) this.refresh(); // the orchestrator is back: end the pauses of all feeds
    this.connection = after(this.connection, null, this.now());
  }

  /**
   * Runs `run(signal)` while the tab is visible, aborts it when the tab is hidden, and runs it again afterwards.
   *
   * So a hidden tab holds no stream open. It ends when `signal` aborts, or when `run` throws an error by itself.
   */
  async whileVisible(run, signal) {
    while (!signal.aborted) {
      await visible(signal);
      const shownNow = new AbortController();
      const hide = () => document.hidden && shownNow.abort();
      document.addEventListener("visibilitychange", hide);
      try {
        await run(AbortSignal.any([signal, shownNow.signal]));
      } catch (error) {
        if (!shownNow.signal.aborted && !signal.aborted) throw error;
      } finally {
        document.removeEventListener("visibilitychange", hide);
      }
    }
  }

  /** Reads the newest events, and then follows the stream of further events. */
  async followEvents() {
    while (!this.signal.aborted) {
      try {
        await this.whileVisible((signal) => this.streamEvents(signal), this.signal);
      } catch (error) {
        if (this.refusedBy(error)) return;
        this.eventsFault = error;
        await sleep(EVENTS_AGAIN_MS, this.signal);
      }
    }
  }

  async streamEvents(signal) {
    if (this.events.cursor === null) await this.firstEvents(signal);
    try {
      await this.streamFrom(this.events.cursor, signal);
    } catch (error) {
      if (error.code !== EXPIRED) throw error;
      this.announce("Some events are missing: the orchestrator deleted them while this page was not connected.");
      await this.firstEvents(signal);
      await this.streamFrom(this.events.cursor, signal);
    }
  }

  /** Follows the stream of events after a cursor. Throws `events-expired` if later events may be lost. */
  async streamFrom(cursor, signal) {
    const open = (last) =>
      this.api.open("/v1/events", { follow: "true", after: last }, { signal, headers: { "Last-Event-ID": last } });
    await follow({
      signal,
      sleep,
      cursor,
      open,
      take: (event) => this.events.take(event),
      told: (error) => (this.eventsFault = error),
    });
  }

  async firstEvents(signal) {
    const page = await this.api.get("/v1/events", { limit: EVENTS_AT_FIRST }, { signal });
    for (const event of page.events) this.events.take(event);
    this.events.cursor = page.next_cursor;
  }
}

async function visible(signal) {
  while (document.hidden && !signal.aborted) {
    const shown = new AbortController();
    document.addEventListener("visibilitychange", () => shown.abort(), { once: true });
    await sleep(VISIBILITY_CHECK_MS, AbortSignal.any([signal, shown.signal]));
  }
}
