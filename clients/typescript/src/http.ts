/** Typed HTTP calls to a service; the types come from its OpenAPI document. */
import { toHex, utf8ToBytes } from "./bytes.js";
import { InvalidError, ProblemError } from "./errors.js";
import type { Address, Key } from "./keys.js";
import { checkAnswer, signRequest } from "./signing.js";

export type Method = "get" | "post" | "put" | "patch" | "delete";

/** The methods that a path has. */
export type MethodsOf<Path> = { [M in Method]: Path extends Record<M, object> ? M : never }[Method];

type JsonBody<Content> = Content extends { content: { "application/json": infer Body } } ? Body : never;
type BodyOf<Operation> = Operation extends { requestBody?: infer Content } ? JsonBody<NonNullable<Content>> : never;
type ParametersOf<Operation, Place extends "path" | "query" | "header"> = Operation extends { parameters: infer Parameters }
  ? Place extends keyof Parameters
    ? NonNullable<Parameters[Place]>
    : never
  : never;

/** Arguments of a call: parameters of path and query, header fields, and the body. */
export type Arguments<Operation> = ([ParametersOf<Operation, "path">] extends [never]
  ? object
  : { path: ParametersOf<Operation, "path"> }) &
  ([ParametersOf<Operation, "query">] extends [never] ? object : { query?: ParametersOf<Operation, "query"> }) &
  ([ParametersOf<Operation, "header">] extends [never] ? object : { headers?: ParametersOf<Operation, "header"> }) &
  ([BodyOf<Operation>] extends [never]
    ? object
    : Operation extends { requestBody: unknown }
      ? { body: BodyOf<Operation> }
      : { body?: BodyOf<Operation> });

/** Body of the successful answer; undefined if it has none. */
export type Answer<Operation> = Operation extends { responses: infer Responses }
  ? Responses extends { 200: { content: { "application/json": infer Body } } }
    ? Body
    : Responses extends { 201: { content: { "application/json": infer Body } } }
      ? Body
      : undefined
  : never;

/** Adds the credentials to a request, and checks its answer. */
export interface Credentials {
  headers(method: string, target: string, body: Uint8Array): Record<string, string>;
  check(sent: Record<string, string>, response: Response, body: Uint8Array): void;
}

/** Credentials of a pool's owner: a bearer token. */
export function bearer(token: string): Credentials {
  return { headers: () => ({ Authorization: `Bearer ${token}` }), check: () => undefined };
}

/**
 * Credentials of a node, validator or manager: signed requests.
 *
 * @param service Address of the service's key, from the ledger or your settings.
 * @param requireSignedAnswers Whether an answer with a body must be signed by the service. Routes for nodes sign their
 *   answers. A signature that is present is checked in any case.
 */
export function signed(key: Key, service: Address, requireSignedAnswers = true): Credentials {
  return {
    headers: (method, target, body) => signRequest(key, { method, target, body, audience: service }),
    check: (sent, response, body) => {
      const signature = response.headers.get("x-muster-signature");
      if (signature === null && (!requireSignedAnswers || body.length === 0)) return;
      const nonce = sent["X-Muster-Nonce"]!;
      checkAnswer({ signature, service, caller: key.address, nonce, status: response.status, body });
    },
  };
}

/** Client of one service. `Paths` is the generated type `paths` of the service. */
export class ServiceClient<Paths extends object> {
  readonly #url: string;
  readonly #credentials: Credentials;
  readonly #timeoutMs: number;

  constructor(url: string, credentials: Credentials, options: { timeoutMs?: number } = {}) {
    this.#url = url.replace(/\/+$/, "");
    this.#credentials = credentials;
    this.#timeoutMs = options.timeoutMs ?? 30_000;
  }

  /** Calls an operation; throws ProblemError if the service refuses it, InvalidError if the answer is forged. */
  async call<P extends keyof Paths & string, M extends MethodsOf<Paths[P]> & keyof Paths[P]>(
    method: M & string,
    path: P,
    given: Arguments<Paths[P][M]>,
  ): Promise<Answer<Paths[P][M]>> {
    const { path: places, query, headers, body } = given as Untyped;
    const { response, sent } = await this.#send(method.toUpperCase(), targetOf(path, places, query), body, { headers });
    const bytes = new Uint8Array(await response.arrayBuffer());
    if (!response.ok) throw ProblemError.of(response.status, new TextDecoder().decode(bytes));
    this.#credentials.check(sent, response, bytes);
    return (bytes.length === 0 ? undefined : JSON.parse(new TextDecoder().decode(bytes))) as Answer<Paths[P][M]>;
  }

  /**
   * Follows a stream of server-sent events; yields the id and the parsed data of each event. It ends when the service
   * ends the stream; open it again after the last id.
   */
  async *follow(
    path: string,
    query: Record<string, string | number>,
    signal: AbortSignal,
  ): AsyncGenerator<{ id: string; data: unknown }> {
    const target = targetOf(path, undefined, { ...query, follow: "true" });
    const { response } = await this.#send("GET", target, undefined, { signal });
    if (!response.ok) throw ProblemError.of(response.status, await response.text());
    let text = "";
    const decoder = new TextDecoder();
    const body = response.body!.getReader();
    // Node.js 20 may lose the connection between a signal and a response's body: the body is ended here, too.
    const end = (): void => void body.cancel().catch(() => undefined);
    signal.addEventListener("abort", end);
    try {
      for (let piece = await body.read(); !piece.done; piece = await body.read()) {
        text += decoder.decode(piece.value, { stream: true });
        const blocks = text.split("\n\n");
        text = blocks.pop()!;
        for (const block of blocks) {
          const field = (name: string): string | undefined =>
            block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
          const data = field("data");
          if (field("event") === "error") throw new InvalidError("the service ended the stream", data ?? "error");
          if (data !== undefined) yield { id: field("id") ?? "", data: JSON.parse(data) };
        }
      }
      signal.throwIfAborted();
    } finally {
      signal.removeEventListener("abort", end);
      end();
    }
  }

  async #send(
    method: string,
    target: string,
    body: unknown,
    options: { headers?: Untyped["headers"]; signal?: AbortSignal } = {},
  ): Promise<{ response: Response; sent: Record<string, string> }> {
    const signal = options.signal ?? AbortSignal.timeout(this.#timeoutMs);
    const bytes = body === undefined ? new Uint8Array() : utf8ToBytes(JSON.stringify(body));
    const sent = this.#credentials.headers(method, target, bytes);
    const given = Object.fromEntries(Object.entries(options.headers ?? {}).filter(([, value]) => value != null));
    const type = body === undefined ? {} : { "Content-Type": "application/json" };
    const headers = { ...given, ...sent, "X-Muster-Version": "1", ...type } as Record<string, string>;
    const init: RequestInit = { method, headers, redirect: "error", signal };
    if (body !== undefined) init.body = bytes;
    return { response: await fetch(this.#url + target, init), sent };
  }
}

interface Untyped {
  path?: Record<string, string | number>;
  query?: Record<string, string | number | boolean | null | undefined>;
  headers?: Record<string, string | null | undefined> | undefined;
  body?: unknown;
}

function targetOf(path: string, places: Untyped["path"], query: Untyped["query"]): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(places?.[name])));
  const items = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null);
  const text = new URLSearchParams(items.map(([name, value]): [string, string] => [name, String(value)])).toString();
  return text === "" ? filled : `${filled}?${text}`;
}

/** Returns a random id of 128 bits, such as `request_id` of a slot and Idempotency-Key of a task. */
export function randomId(): string {
  return toHex(crypto.getRandomValues(new Uint8Array(16))).slice(2);
}
