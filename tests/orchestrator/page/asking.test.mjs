import assert from "node:assert/strict";
import { test } from "node:test";

import { Access, includes, tokenIn } from "../../../orchestrator/page/core/access.mjs";
import { Api, nodePath } from "../../../orchestrator/page/core/api.mjs";
import { waitOf, words } from "../../../orchestrator/page/core/problem.mjs";
import { isAddress, nodeLink, placeOf } from "../../../orchestrator/page/core/place.mjs";
import { MARKUP, NODE } from "./answers.mjs";

const TOKEN = `mst_0123abcd_${"A-_z".repeat(11).slice(0, 43)}`;

function answering(status, body, headers = {}) {
  const asked = [];
  const fetch = async (url, init) => {
    asked.push({ url, init });
    return new Response(body, { status, headers });
  };
  return { asked, api: new Api({ token: TOKEN, base: "https://pool.example/below/", fetch }) };
}

function problem(status, more, headers = {}) {
  return answering(status, JSON.stringify({ status, ...more }), {
    "Content-Type": "application/problem+json",
    ...headers,
  });
}

test("a token is found in pasted text, and any other text is refused", () => {
  for (const text of [TOKEN, ` ${TOKEN}\n`, `Bearer ${TOKEN}`, `Authorization: bearer ${TOKEN}`])
    assert.equal(tokenIn(text), TOKEN);
  for (const text of ["", "mst_", TOKEN.slice(0, -1), `${TOKEN}x`, `${TOKEN} ${TOKEN}`, MARKUP])
    assert.equal(tokenIn(text), null);
});

test("the token is stored for one tab; without storage it is valid until the page is reloaded", () => {
  const kept = new Map();
  const storage = {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
  const access = new Access(storage);
  assert.equal(access.token, null);
  access.keep(TOKEN);
  assert.equal(access.token, TOKEN);
  access.forget();
  assert.equal(kept.size, 0);
  const none = new Access({
    getItem: () => {
      throw new Error("not allowed");
    },
  });
  none.keep(TOKEN);
  none.forget();
  assert.equal(none.token, null);
});

test("each scope includes the lower scopes, and an unknown scope includes none", () => {
  assert.ok(includes("admin", "read") && includes("operate", "operate") && includes("read", "read"));
  for (const [scope, needed] of [
    ["read", "operate"],
    ["operate", "admin"],
    ["", "read"],
    ["root", "read"],
    ["admin", "root"],
  ])
    assert.ok(!includes(scope, needed));
});

test("the token is sent in the Authorization header and never in a URL", async () => {
  const { asked, api } = answering(200, "{}");
  await api.get("/v1/nodes", { state: "", cursor: null, limit: 100, metric: "a b&c" });
  await api.post(nodePath(NODE, "ban"), { reason: "x" });
  await api.open("/v1/events", { follow: "true" }, { signal: new AbortController().signal });
  assert.equal(asked[0].url, "https://pool.example/below/v1/nodes?limit=100&metric=a+b%26c");
  for (const { url, init } of asked) {
    assert.ok(!url.includes("mst_"));
    assert.equal(init.headers.Authorization, `Bearer ${TOKEN}`);
    assert.deepEqual(
      [init.credentials, init.redirect, init.referrerPolicy, init.cache],
      ["omit", "error", "no-referrer", "no-store"],
    );
  }
});

test("an invalid node address is encoded as one segment of the path", () => {
  assert.equal(nodePath("../../x?y#z", "logs"), "/v1/nodes/..%2F..%2Fx%3Fy%23z/logs");
});

const REFUSALS = [
  [
    problem(401, { code: "bad-token", detail: "the token is not known to this pool" }),
    "token",
    /does not know this token.*muster token new/,
  ],
  [problem(401, { code: "no-token" }), "token", /without a token/],
  [
    problem(403, {
      code: "scope",
      detail: "the token looker has the scope read; this needs admin",
      hint: "use a token of a wider scope",
    }),
    "scope",
    /^The token looker has .* needs admin\. Use a token/,
  ],
  [problem(429, { code: "rate-limited", detail: "too many" }, { "Retry-After": "7" }), "limited", /Too many/],
  [
    problem(503, { code: "unavailable", detail: "redis is down", hint: "try again" }),
    "gone",
    /^Redis is down\. Try again\.$/,
  ],
  [problem(404, { code: "no-run", detail: "this pool has no run" }), "refused", /no run/],
  [
    answering(502, "<html>nginx</html>", { "Content-Type": "text/html" }),
    "gone",
    /^The answer was 502, without an explanation\.$/,
  ],
  [answering(403, "{", { "Content-Type": "application/problem+json" }), "refused", /403/],
];

for (const [{ api }, kind, says] of REFUSALS) {
  test(`an error answer is shown as text: ${kind} ${says}`, async () => {
    const error = await api.get("/v1/pool").then(
      () => assert.fail("it was answered"),
      (thrown) => thrown,
    );
    assert.equal(error.kind, kind);
    assert.match(words(error), says);
  });
}

test("Retry-After is read as seconds or a date, and bounded", async () => {
  const { api } = problem(429, {}, { "Retry-After": "7" });
  await assert.rejects(api.get("/v1/pool"), { retryAfterS: 7 });
  const now = Date.parse("Sun, 22 Nov 2026 10:00:00 GMT");
  for (const [header, seconds] of [
    ["0", 1],
    ["Sun, 22 Nov 2026 10:00:30 GMT", 30],
    ["999999", 3600],
    ["soon", null],
    ["", null],
    [null, null],
  ])
    assert.equal(waitOf(header, now), seconds);
});

test("a late answer, no answer and an answer without JSON all count as a lost connection", async () => {
  const late = new Api({
    token: TOKEN,
    base: "https://a.example/",
    timeoutMs: 5,
    fetch: (_, { signal }) => new Promise((_, no) => signal.addEventListener("abort", () => no(signal.reason))),
  });
  const down = new Api({
    token: TOKEN,
    base: "https://a.example/",
    fetch: async () => {
      throw new TypeError("failed to fetch");
    },
  });
  const { api: odd } = answering(200, "<html>");
  for (const [api, says] of [
    [late, /No answer in time/],
    [down, /No connection to the orchestrator/],
    [odd, /broke off/],
  ]) {
    const error = await api.get("/v1/pool").catch((thrown) => thrown);
    assert.equal(error.kind, "gone");
    assert.match(words(error), says);
  }
});

test("a request that the page aborts is not reported as a failure of the orchestrator", async () => {
  const end = new AbortController();
  const api = new Api({
    token: TOKEN,
    base: "https://a.example/",
    fetch: (_, { signal }) => new Promise((_, no) => signal.addEventListener("abort", () => no(signal.reason))),
  });
  const asking = api.get("/v1/pool", {}, { signal: end.signal });
  end.abort();
  await assert.rejects(asking, { name: "AbortError" });
});

test("a fragment selects a view, and an unknown fragment selects none", () => {
  for (const [fragment, place] of [
    ["", { view: "run", node: null }],
    ["#rollouts", { view: "rollouts", node: null }],
    [`#node/${NODE}`, { view: "node", node: NODE }],
    ["#node/javascript:alert(1)", { view: "nodes", node: null }],
    ["#content", null],
    ["#__proto__", null],
  ])
    assert.deepEqual(placeOf(fragment), place);
  assert.equal(nodeLink(`"><script>`), "");
  assert.ok(!isAddress(`${NODE}0`));
});

test("a change without an answer is reported as possibly made, and has a longer time limit than a read", async () => {
  const never = (_, { signal }) => new Promise((_, no) => signal.addEventListener("abort", () => no(signal.reason)));
  const late = new Api({ token: TOKEN, base: "https://a.example/", fetch: never, timeoutMs: 5, changeTimeoutMs: 30 });
  const proxy = answering(504, "<html>", { "Content-Type": "text/html" }).api;
  const refused = problem(409, { code: "not-draining", detail: "it is healthy" }).api;
  const awake = setInterval(() => {}, 1000); // a request's time limit alone does not keep the Node.js process running
  const failed = async (asking) => words(await asking.catch((thrown) => thrown));
  assert.equal(await failed(late.get("/v1/pool")), "No answer in time.");
  for (const api of [late, proxy]) assert.match(await failed(api.post(nodePath(NODE, "ban"), {})), /may have been made/);
  assert.equal(await failed(refused.post(nodePath(NODE, "resume"), {})), "It is healthy.");
  assert.ok(new Api({ token: TOKEN, base: "https://a.example/" }).changeTimeoutMs > 90_000);
  clearInterval(awake);
});
