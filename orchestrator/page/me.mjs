// Entry point of the contributor's page: exchanges a one-time link for a session, polls what the provider may read.

import { Access, SESSION_ACCESS, loginCodeOf } from "./core/access.mjs";
import { Api } from "./core/api.mjs";
import { BEGUN, after, isStale, said } from "./core/connection.mjs";
import { Feed } from "./core/feed.mjs";
import { workOf } from "./core/place.mjs";
import { words } from "./core/problem.mjs";
import { sessionWords } from "./rows/me.mjs";
import { Commands } from "./view/commands.mjs";
import { element, say, show } from "./view/dom.mjs";
import { meView, myWorkView } from "./view/me.mjs";

const EVERY_MS = 5000;
const WORKS_EVERY_MS = 10_000;
const DRAWN_EVERY_MS = 5000;
const LIMIT = 50;
const OVER = "This session is over, or was ended.";

const part = (name) => document.getElementById(name);
const base = new URL("..", location.href.split("#")[0]);
const access = new Access(globalThis.sessionStorage, SESSION_ACCESS);

let session = null; // { api, over, me, works, skip, connection }
let view = null;

function begin(token) {
  access.keep(token);
  session = { api: new Api({ token, base }), over: new AbortController(), me: null, ahead: 0, works: null, skip: 0, connection: BEGUN };
  const { api, over } = session;
  const feed = (everyMs, ask, take, failed) => {
    const made = new Feed({
      everyMs,
      ask,
      take: (answer) => (take(answer), render()),
      signal: over.signal,
      paused: () => document.hidden,
      failed: (error) => (error.kind === "token" ? end(OVER) : (failed(error), render())),
    });
    made.run();
    return made;
  };
  session.mine = feed(
    EVERY_MS,
    (signal) => api.get("/v1/me", {}, { signal }),
    (me) => {
      Object.assign(session, { me, ahead: me.time_ms - Date.now() });
      session.connection = after(session.connection, null, now());
    },
    (error) => (session.connection = after(session.connection, error, now())),
  );
  session.working = feed(
    WORKS_EVERY_MS,
    async (signal) => {
      const skip = session.skip;
      return { skip, page: await api.get("/v1/me/works", { skip, limit: LIMIT }, { signal }) };
    },
    ({ skip, page }) => skip === session.skip && Object.assign(session, { works: page, fault: null }),
    (error) => (session.fault = error),
  );
  go();
}

/** Ends the session in this tab and removes its data from the page. */
function end(why) {
  session?.over.abort();
  session = null;
  view = null;
  access.forget();
  explain(why);
}

function explain(why) {
  const commands = new Commands();
  commands.show([
    ["On the machine with a node's key, print a one-time link and open it in this browser:", "muster worker page"],
    ["Or with the provider's key:", "muster worker page --key provider"],
    ["End all sessions, on all devices:", "muster worker page --revoke"],
  ]);
  show(part("who"), false);
  part("content").replaceChildren(
    element(
      "section",
      { class: "narrow", "aria-labelledby": "about-login" },
      element("h2", { id: "about-login" }, "Log in with your node's key"),
      why ? element("p", { class: "fault", role: "alert" }, why) : null,
      element("p", {}, "This page shows a contributor's earnings, verdicts and stake. It holds no key and can change nothing."),
      commands.element,
    ),
  );
  render();
}

function now() {
  return Date.now() + (session?.ahead ?? 0);
}

function go({ moved = false } = {}) {
  if (session === null) return;
  const key = workOf(location.hash);
  if (key === null && location.hash.length > 1 && view !== null) return; // “Skip to the content” names no view
  if (key === null) {
    view = meView((skip) => {
      session.skip = skip;
      session.working.again();
    });
  } else {
    view = myWorkView(key);
    readEvidence(key, view);
  }
  part("content").replaceChildren(view.element);
  window.scrollTo(0, 0);
  if (moved && document.activeElement === document.body) part("content").focus(); // the clicked link was removed
  render();
}

async function readEvidence(key, wanted) {
  try {
    const evidence = await session.api.get(`/v1/me/works/${encodeURIComponent(key)}/evidence`, {}, { signal: session.over.signal });
    if (view === wanted) wanted.show(evidence, now());
  } catch (error) {
    if (view !== wanted || session === null) return;
    if (error.kind === "token") end(OVER);
    else wanted.failed(error);
  }
}

function render() {
  const trouble = session === null ? "" : said(session.connection, now());
  say(part("trouble"), trouble);
  show(part("trouble"), trouble !== "");
  document.body.classList.toggle("stale", session !== null && isStale(session.connection));
  document.title = `${view === null ? "Your nodes" : view.title} · Muster`;
  if (session === null || view === null) return;
  const { me, works } = session;
  show(part("who"), true);
  if (me !== null) say(part("caller"), sessionWords(me, now()));
  if (view.offer) return view.offer(works?.works.find((each) => each.key === workOf(location.hash)), me?.challenge_period_s);
  if (me !== null) view.show(me, now());
  if (works !== null) view.showWorks(works, session.skip, now());
  view.workPanel.failed(session.fault ?? null);
}

/** Exchanges the code of a one-time link; the code leaves the address bar and the history at once. */
async function exchange(code) {
  history.replaceState(null, "", location.pathname);
  try {
    const made = await new Api({ base }).post("/v1/me/sessions", { code });
    begin(made.token);
  } catch (error) {
    explain(error.kind === "token" ? "This link was used already, or is older than five minutes." : words(error));
  }
}

part("leave").addEventListener("click", async () => {
  const { api } = session;
  end("You have logged out.");
  await api.delete("/v1/me/session").catch(() => {}); // the session then ends by itself after its time
});
window.addEventListener("hashchange", () => {
  const code = loginCodeOf(location.hash);
  if (code === null) return go({ moved: true });
  if (session !== null) end("");
  exchange(code);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden || session === null) return;
  session.mine.again();
  session.working.again();
});
setInterval(render, DRAWN_EVERY_MS);

const code = loginCodeOf(location.hash);
if (code !== null) exchange(code);
else if (access.token !== null) begin(access.token);
else explain("");
