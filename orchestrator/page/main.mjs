// Entry point of the page: connects the session, the selected view, and the state of the connection.

import { Access } from "./core/access.mjs";
import { isStale, said } from "./core/connection.mjs";
import { VIEWS, placeOf } from "./core/place.mjs";
import { words } from "./core/problem.mjs";
import { shown } from "./core/text.mjs";
import { Session } from "./session.mjs";
import { element, say, show } from "./view/dom.mjs";
import { eventsView } from "./view/events.mjs";
import { moneyView } from "./view/money.mjs";
import { nodeView } from "./view/node.mjs";
import { nodesView } from "./view/nodes.mjs";
import { rolloutsView } from "./view/rollouts.mjs";
import { runView } from "./view/run.mjs";
import { signIn } from "./view/signin.mjs";
import { taskView } from "./view/task.mjs";
import { tasksView } from "./view/tasks.mjs";
import { workView } from "./view/work.mjs";

const OPEN = { run: runView, money: moneyView, nodes: nodesView, tasks: tasksView, rollouts: rolloutsView, events: eventsView };
const ONE = { node: nodeView, task: taskView, work: workView }; // views of one thing, below the list of its kind
const LIST_OF = { node: "nodes", task: "tasks", work: "rollouts" };
const EVERY_MS = 1000; // the page is drawn at this interval, because shown ages also grow between two answers

const part = (name) => document.getElementById(name);
const access = new Access(globalThis.sessionStorage);
const base = new URL("..", location.href.split("#")[0]);

let session = null;
let view = null;

async function begin(token) {
  const started = new Session({
    token,
    base,
    refused: (error) => end(words(error)),
    announce: (text) => say(part("announcer"), text),
  });
  await started.begin();
  access.keep(token);
  session = started;
  show(part("who"), true);
  show(part("views"), true);
  go();
}

/** Ends the session and removes the pool's data from the page and the token from the browser. */
function end(why) {
  session?.end();
  session = null;
  view = null;
  access.forget();
  closeQuestions();
  ask(why);
}

function closeQuestions() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
}

function ask(why) {
  show(part("who"), false);
  show(part("views"), false);
  say(part("pool"), "");
  const form = signIn({ attempt: begin, why });
  part("content").replaceChildren(form.element);
  form.field.focus();
  render();
}

function go() {
  const place = placeOf(location.hash);
  if (session === null || (place === null && view !== null)) return;
  const { view: name, node, key } = place ?? { view: "run", node: null };
  session.leave();
  closeQuestions();
  view = name in ONE ? ONE[name](session, node ?? key) : OPEN[name](session);
  part("content").replaceChildren(view.element);
  for (const each of VIEWS) mark(part(`to-${each}`), each === name || each === LIST_OF[name]);
  window.scrollTo(0, 0);
  if (document.activeElement === document.body) part("content").focus(); // the clicked element was removed with the last view
  render();
}

function mark(link, here) {
  if (here) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

function render() {
  if (document.hidden) return;
  const trouble = session === null ? "" : said(session.connection, session.now());
  say(part("trouble"), trouble);
  show(part("trouble"), trouble !== "");
  document.body.classList.toggle("stale", session !== null && isStale(session.connection));
  const pool = session?.pool;
  const name = pool ? `Pool ${pool.pool_id}${pool.run ? ` · ${shown(pool.run, 63)}` : ""}` : "Pool";
  document.title = `${view && session ? `${view.title} · ` : ""}${name} · Muster`;
  if (session === null || view === null) return;
  say(part("pool"), name);
  say(part("caller"), `${shown(pool.caller.name, 63)} (${shown(pool.caller.scope, 20)})`);
  view.render();
}

/** Signs in with a stored token; retries while the orchestrator does not answer. */
async function resume(token) {
  part("content").replaceChildren(element("p", { class: "note", role: "status" }, "Connecting to the orchestrator…"));
  for (let pause = 1000; access.token === token; pause = Math.min(15_000, pause * 2)) {
    try {
      return await begin(token);
    } catch (error) {
      if (error.kind !== "gone" && error.kind !== "limited") return end(words(error));
      const wait = Math.max(pause, (error.retryAfterS ?? 0) * 1000);
      const text = `${words(error)} This page tries again automatically.`;
      part("content").replaceChildren(element("p", { class: "fault", role: "status" }, text));
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
}

part("forget").addEventListener("click", () => end("The token was removed from this tab."));
window.addEventListener("hashchange", go);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  session?.refresh();
  render();
});
setInterval(render, EVERY_MS);
if (access.token === null) ask("");
else resume(access.token);
