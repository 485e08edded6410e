// HTTP client of the orchestrator's API; sends the token in a header only.

import { ApiError, errorOf, noAnswer, perhapsDone } from "./problem.mjs";

const TIMEOUT_MS = 15_000;
const CHANGE_TIMEOUT_MS = 120_000; // a ban is answered when its transaction is mined; the orchestrator waits up to 90 s for that

export class Api {
  /** `base` is the URL that precedes `/v1/...`; without `token`, public routes are read; tests pass their own `fetch`. */
  constructor({ token = null, base, fetch = globalThis.fetch.bind(globalThis), timeoutMs = TIMEOUT_MS, changeTimeoutMs = CHANGE_TIMEOUT_MS }) {
    this.token = token;
    this.base = base;
    this.fetch = fetch;
    this.timeoutMs = timeoutMs;
    this.changeTimeoutMs = changeTimeoutMs;
  }

  /** Returns the parsed JSON of an answer. Throws ApiError, or the error of `fetch` if `signal` aborted the request. */
  async get(path, query = {}, { signal } = {}) {
    return this.json(path, query, { method: "GET" }, signal, this.timeoutMs);
  }

  /**
   * Sends a change. If no answer arrives, the error says that the change may have been made.
   *
   * With `once`, a key of `newKey`, the orchestrator makes the change only once, however often it is sent.
   */
  async post(path, body, { signal, method = "POST", once = null } = {}) {
    const headers = { "Content-Type": "application/json", ...(once === null ? {} : { "Idempotency-Key": once }) };
    const init = { method, body: JSON.stringify(body), headers };
    return this.json(path, {}, init, signal, this.changeTimeoutMs).catch((error) => {
      throw error instanceof ApiError ? perhapsDone(error) : error;
    });
  }

  /** Deletes something; the answer has no body. */
  async delete(path) {
    await this.ask(path, {}, { method: "DELETE", signal: AbortSignal.timeout(this.timeoutMs) });
  }

  /** Returns the response of a stream, whose body the caller reads; the request has no time limit. */
  async open(path, query, { signal, headers = {} }) {
    return this.ask(path, query, { method: "GET", signal, headers }, signal);
  }

  async json(path, query, init, signal, timeoutMs) {
    const late = AbortSignal.timeout(timeoutMs);
    const either = signal ? AbortSignal.any([signal, late]) : late;
    const response = await this.ask(path, query, { ...init, signal: either }, signal);
    return response.json().catch((error) => {
      if (signal?.aborted) throw error;
      throw new ApiError({ status: 0, code: "no-json", detail: "the answer broke off, or does not come from this API" });
    });
  }

  async ask(path, query, init, wanted) {
    const headers = { ...init.headers, Accept: "application/json" };
    if (this.token !== null) headers.Authorization = `Bearer ${this.token}`;
    const rules = { credentials: "omit", redirect: "error", cache: "no-store", referrerPolicy: "no-referrer" };
    let response;
    try {
      response = await this.fetch(this.url(path, query), { ...init, ...rules, headers });
    } catch (error) {
      if (wanted?.aborted) throw error;
      throw noAnswer(error);
    }
    if (!response.ok) throw await errorOf(response);
    return response;
  }

  url(path, query) {
    const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const text = new URLSearchParams(given).toString();
    return new URL(path.replace(/^\//, "") + (text ? `?${text}` : ""), this.base).href;
  }
}

/** Returns the API path of a node. The address is encoded, so that it stays one segment of the path. */
export function nodePath(address, ...rest) {
  return ["/v1/nodes", encodeURIComponent(address), ...rest].join("/");
}

/** Returns a random key for a change that must be made only once. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
