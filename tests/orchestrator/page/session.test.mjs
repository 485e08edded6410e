import assert from "node:assert/strict";
import { test } from "node:test";

import { Session } from "../../../orchestrator/page/session.mjs";
import { element, shape } from "../../../orchestrator/page/view/dom.mjs";

const POOL = { pool_id: 7, run: null, time_ms: Date.now() + 60_000, caller: { name: "ada", scope: "operate" } };
const TOKEN = `mst_00000000_${"x".repeat(43)}`;

/** Simulates the browser for a session: a tab that is visible or hidden, and answers by path. */
function browser(answers) {
  const tab = Object.assign(new EventTarget(), { hidden: false });
  globalThis.document = tab;
  const streams = [];
  globalThis.fetch = async (url, { signal, headers }) => {
    const { pathname, searchParams } = new URL(url);
    if (searchParams.get("follow")) {
      if (answers.lost && headers["Last-Event-ID"] === answers.lost)
        return Response.json({ code: "events-expired" }, { status: 410, headers: { "Content-Type": "application/problem+json" } });
      const body = new ReadableStream({
        start: (controller) => signal.addEventListener("abort", () => controller.error(signal.reason)),
      });
      streams.push({ pathname, after: searchParams.get("after"), signal });
      return new Response(body);
    }
    const found = answers[pathname];
    if (found === undefined) return new Response("{}", { status: 404 });
    return typeof found === "number" ? new Response("{}", { status: found }) : Response.json(found);
  };
  const look = (hidden) => {
    tab.hidden = hidden;
    tab.dispatchEvent(new Event("visibilitychange"));
  };
  return { streams, look, answers, open: () => streams.filter((each) => !each.signal.aborted) };
}

async function until(holds) {
  for (let tries = 0; tries < 500; tries += 1) {
    if (holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  assert.fail(`not so: ${holds}`);
}

async function begun(given = {}, announced = []) {
  const page = browser({ "/v1/pool": POOL, "/v1/events": { events: [], next_cursor: "5-0" }, ...given });
  const refused = [];
  const session = new Session({
    token: TOKEN,
    base: "https://pool.example/",
    refused: (error) => refused.push(error),
    announce: (text) => announced.push(text),
  });
  await session.begin();
  return { page, session, refused };
}

test("a session knows the pool, the scope of its token, and the orchestrator's time", async () => {
  const { session } = await begun();
  assert.deepEqual([session.scope, session.connection.phase], ["operate", "well"]);
  assert.ok(session.now() - Date.now() > 55_000);
  session.end();
});

test("a session with an unknown token does not begin", async () => {
  await assert.rejects(begun({ "/v1/pool": 401 }), { status: 401 });
});

test("an answer that is not from the orchestrator begins no session, and changes nothing in a running one", async () => {
  for (const odd of [null, {}, [], { ...POOL, time_ms: "now" }, { ...POOL, caller: null }])
    await assert.rejects(begun({ "/v1/pool": odd }), { kind: "gone" });
  const { page, session } = await begun();
  page.answers["/v1/pool"] = {};
  session.refresh();
  await until(() => session.connection.phase === "gone");
  assert.deepEqual([session.pool, Number.isFinite(session.now())], [POOL, true]);
  session.end();
});

test("events are followed while the tab is visible, and continue after the last one when it is visible again", async () => {
  const { page, session } = await begun();
  await until(() => page.open().length === 1);
  page.look(true);
  await until(() => page.open().length === 0);
  session.events.cursor = "9-0";
  page.look(false);
  await until(() => page.open().length === 1);
  assert.deepEqual(
    page.streams.map((each) => each.after),
    ["5-0", "9-0"],
  );
  session.end();
  await until(() => page.open().length === 0);
});

test("a session says that events are missing, and follows the newest ones", async () => {
  const announced = [];
  const { page, session } = await begun({}, announced);
  await until(() => page.open().length === 1);
  page.look(true);
  session.events.cursor = page.answers.lost = "1-0";
  page.answers["/v1/events"] = { events: [{ id: "7-0" }], next_cursor: "8-0" };
  page.look(false);
  await until(() => page.open().length === 1);
  assert.equal(page.open()[0].after, "8-0");
  assert.match(announced.join(), /events are missing/);
  assert.deepEqual(session.events.events, [{ id: "7-0" }]);
  session.end();
});

test("the feeds of a view end with the view, and all feeds end with the session", async () => {
  const { page, session } = await begun();
  let asked = 0;
  const signals = [];
  session.feed({
    everyMs: 1,
    ask: async (signal) => (signals.push(signal), (asked += 1)),
    take: () => {},
    failed: assert.fail,
  });
  const place = session.place.signal;
  session.whileVisible(
    (signal) =>
      session.api
        .open("/v1/nodes/0x/logs", { follow: "true" }, { signal })
        .then(() => new Promise((resolve) => signal.addEventListener("abort", resolve))),
    place,
  );
  await until(() => asked > 2 && page.open().length === 2);
  session.leave();
  await until(() => page.open().length === 1 && place.aborted);
  const before = asked;
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.ok(asked <= before + 1);
  assert.equal(session.feeds.size, 1, "the pool itself is still asked for");
  session.end();
  await until(() => session.feeds.size === 0 && page.open().length === 0);
});

test("a refused token ends the session once, and no view shows it as an error of its own", async () => {
  const { page, session, refused } = await begun();
  page.answers["/v1/run"] = 401;
  const faults = [];
  session.feed({
    everyMs: 1,
    ask: (signal) => session.api.get("/v1/run", {}, { signal }),
    take: assert.fail,
    failed: (error) => faults.push(error),
  });
  await until(() => refused.length > 0);
  session.end();
  assert.deepEqual([refused[0].status, faults], [401, []]);
});

test("an element accepts text and listed attributes; scripts, styles and external links are refused", () => {
  const made = [];
  const make = (name) => ({
    name,
    kept: {},
    children: [],
    setAttribute(key, value) {
      this.kept[key] = value;
    },
    append(...more) {
      this.children.push(...more);
    },
  });
  globalThis.document = {
    createElement: (name) => (made.push(make(name)), made.at(-1)),
    createElementNS: (_, name) => make(name),
  };
  const cell = element("td", { class: "number", title: null }, "<b>", null, ["x"]);
  assert.deepEqual([cell.kept, cell.children], [{ class: "number" }, ["<b>", "x"]]);
  for (const attributes of [
    { onclick: "x" },
    { style: "x" },
    { src: "x" },
    { srcdoc: "x" },
    { action: "x" },
    { href: "javascript:alert(1)" },
    { href: "https://a.example" },
  ])
    assert.throws(() => element("a", attributes));
  assert.throws(() => shape("path", { onload: "x" }));
  assert.throws(() => shape("a", { href: "#x" }));
});
