// HTTP client of the orchestrator's API; sends the token in a header only.

import { ApiError, errorOf, noAnswer, perhapsDone } from "./problem.mjs";

const PATIENCE_MS = 15_000;
const DOING_MS = 120_000; // a ban is answered when its transaction is mined, for which the orchestrator waits 90 s

export class Api {
  /** `base` is the URL above `/v1/...`; tests pass their own `fetch`. */
  constructor({ token, base, fetch = globalThis.fetch.bind(globalThis), patienceMs = PATIENCE_MS, doingMs = DOING_MS }) {
    this.token = token;
    this.base = base;
    this.fetch = fetch;
    this.patienceMs = patienceMs;
    this.doingMs = doingMs;
  }

  /** Returns the JSON of an answer. Throws ApiError, or the error of fetch if `signal` aborted the request. */
  async get(path, query = {}, { signal } = {}) {
    return this.json(path, query, { method: "GET" }, signal, this.patienceMs);
  }

  /** Sends a change. Without an answer it is unknown whether the change was made, and the error says so. */
  async post(path, body, { signal } = {}) {
    const init = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
    return this.json(path, {}, init, signal, this.doingMs).catch((error) => {
      throw error instanceof ApiError ? perhapsDone(error) : error;
    });
  }

  /** Returns the answer of a stream with an unread body; it has no time limit. */
  async open(path, query, { signal }) {
    return this.ask(path, query, { method: "GET", signal }, signal);
  }

  async json(path, query, init, signal, patienceMs) {
    const late = AbortSignal.timeout(patienceMs);
    const either = signal ? AbortSignal.any([signal, late]) : late;
    const response = await this.ask(path, query, { ...init, signal: either }, signal);
    return response.json().catch((error) => {
      if (signal?.aborted) throw error;
      throw new ApiError({ status: 0, code: "no-json", detail: "the answer broke off, or is none of this API's" });
    });
  }

  async ask(path, query, init, wanted) {
    const headers = { ...init.headers, Accept: "application/json", Authorization: `Bearer ${this.token}` };
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

/** Returns an API path with one encoded part, which stays one part whatever characters it has. */
export function nodePath(address, ...rest) {
  return ["/v1/nodes", encodeURIComponent(address), ...rest].join("/");
}
