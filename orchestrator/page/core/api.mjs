// The one way to the orchestrator: a path of its API, the token in a header, and nowhere else.

import { ApiError, errorOf, noAnswer, perhapsDone } from "./problem.mjs";

const PATIENCE_MS = 15_000;
const DOING_MS = 120_000; // a ban is answered when its transaction is mined, for which the orchestrator waits 90 s

export class Api {
  /** `base` is the URL that `/v1/...` hangs below; `fetch` is given by tests. */
  constructor({ token, base, fetch = globalThis.fetch.bind(globalThis), patienceMs = PATIENCE_MS, doingMs = DOING_MS }) {
    this.token = token;
    this.base = base;
    this.fetch = fetch;
    this.patienceMs = patienceMs;
    this.doingMs = doingMs;
  }

  /** The JSON of an answer. Throws ApiError; if `signal` aborted it, whatever fetch throws. */
  async get(path, query = {}, { signal } = {}) {
    return this.json(path, query, { method: "GET" }, signal, this.patienceMs);
  }

  /** Has something done. Where no answer comes, nobody here knows whether it was, and the error says so. */
  async post(path, body, { signal } = {}) {
    const init = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
    return this.json(path, {}, init, signal, this.doingMs).catch((error) => {
      throw error instanceof ApiError ? perhapsDone(error) : error;
    });
  }

  /** The answer of a stream, whose body is still to be read; there is no time limit on it. */
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

/** A path of the API with one part that is not ours: it stays one part, whatever is in it. */
export function nodePath(address, ...rest) {
  return ["/v1/nodes", encodeURIComponent(address), ...rest].join("/");
}
