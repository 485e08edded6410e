// Live log of a node's task. Lines are untrusted text; long lines are shortened, and the oldest lines are dropped.

import { nodePath } from "../core/api.mjs";
import { sleep } from "../core/feed.mjs";
import { words } from "../core/problem.mjs";
import { follow } from "../core/stream.mjs";
import { MOST_LINES, following, logLine } from "../rows/logs.mjs";
import { button, element, say } from "./dom.mjs";
import { Panel } from "./panel.mjs";

const TAIL = 200;

export function logPanel(session, address) {
  const box = element("ol", { class: "log", tabindex: "0", "aria-label": "Lines of the log, oldest first" });
  const about = element(
    "p",
    { class: "note", role: "status" },
    "Click to follow the log. The node sends its lines after its next heartbeat.",
  );
  const toggle = button("Follow the log", () => (state.stop ? stop("Stopped.") : start()));
  const panel = new Panel("Log", element("div", { class: "buttons" }, toggle), about, box);
  const state = { assignment: null, stop: null, next: null };
  const place = session.place.signal; // aborted when the user leaves the view
  const waiting = []; // lines to draw in the next frame, because a node's first push may have thousands

  function start() {
    const end = (state.stop = new AbortController());
    const all = AbortSignal.any([place, end.signal]);
    say(toggle, "Stop following");
    say(about, "Following.");
    session.whileVisible(stream, all).catch((error) => all.aborted || session.refusedBy(error) || stop(words(error)));
  }

  function stream(signal) {
    const from = () => (state.next === null ? { tail: TAIL } : { since: state.next });
    return follow({
      signal,
      sleep,
      open: () =>
        session.api.open(
          nodePath(address, "logs"),
          { follow: "true", assignment: state.assignment, ...from() },
          { signal },
        ),
      take: (line) => ((state.next = following(line)), add(logLine(line, session.now()))),
      told: (error) => say(about, error === null ? "Following." : words(error)),
    });
  }

  function stop(why) {
    state.stop?.abort();
    state.stop = null;
    say(toggle, "Follow the log");
    say(about, why);
  }

  function add(line) {
    waiting.push(line);
    if (waiting.length > MOST_LINES) waiting.shift();
    else if (waiting.length === 1) requestAnimationFrame(draw);
  }

  function draw() {
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.append(...waiting.splice(0).map(drawn));
    while (box.childElementCount > MOST_LINES) box.firstElementChild.remove();
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  return {
    element: panel.element,
    /** Sets the node's current assignment; each assignment has its own log. */
    assigned(assignment) {
      if (assignment === state.assignment) return;
      Object.assign(state, { assignment, next: null });
      waiting.length = 0;
      box.replaceChildren();
      if (state.stop) {
        stop("");
        start();
      }
    },
  };
}

function drawn({ time, stream, text }) {
  const whose = stream === "stdout" ? null : element("b", {}, stream);
  return element(
    "li",
    { class: stream === "stderr" ? stream : null },
    element("time", {}, time),
    whose,
    element("span", {}, text),
  );
}
