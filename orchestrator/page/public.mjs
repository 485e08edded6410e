// Entry point of the public page: polls the summary of the pool and shows it. It has no token and stores nothing.

import { Api } from "./core/api.mjs";
import { BEGUN, after, isStale, said } from "./core/connection.mjs";
import { Feed } from "./core/feed.mjs";
import { poolName } from "./rows/public.mjs";
import { say, show } from "./view/dom.mjs";
import { publicView } from "./view/public.mjs";

const EVERY_MS = 15_000;

const part = (name) => document.getElementById(name);
const api = new Api({ base: new URL("..", location.href.split("#")[0]) });
let connection = BEGUN;
let view = null;

const feed = new Feed({
  everyMs: EVERY_MS,
  signal: new AbortController().signal,
  paused: () => document.hidden,
  ask: (signal) => api.get("/v1/public", {}, { signal }),
  take: (summary) => {
    connection = after(connection, null, Date.now());
    if (view === null) {
      view = publicView();
      part("content").replaceChildren(view.element);
    }
    view.show(summary, Date.now());
    say(part("pool"), poolName(summary));
    document.title = `${poolName(summary)} · Muster`;
    drawTrouble();
  },
  failed: (error) => {
    connection = after(connection, error, Date.now());
    drawTrouble();
  },
});

function drawTrouble() {
  const trouble = said(connection, Date.now());
  say(part("trouble"), trouble);
  show(part("trouble"), trouble !== "");
  document.body.classList.toggle("stale", isStale(connection));
}

document.addEventListener("visibilitychange", () => document.hidden || feed.again());
feed.run();
