// View of the submitted files of one step, with their verdicts and a few of its rollouts as text.

import { COLUMNS, STATUSES, rolloutRow } from "../rows/rollouts.mjs";
import { current } from "../rows/run.mjs";
import { count } from "../core/format.mjs";
import { button, choice, element, say, show } from "./dom.mjs";
import { Panel } from "./panel.mjs";
import { Samples } from "./samples.mjs";
import { Table } from "./table.mjs";

const PAGE = 100;

export function rolloutsView(session) {
  const table = new Table({
    caption: "Submitted files of the step",
    columns: COLUMNS,
    empty: "No file with this verdict was submitted for this step.",
  });
  const words = element("p", { class: "note", role: "status" });
  const state = { step: null, chosen: false, status: "all", cursors: [null], next: null, items: null, sampled: null };
  const again = (change) => {
    Object.assign(state, { cursors: [null], next: null }, change);
    feed.again();
    sampled.again();
  };
  const field = element("input", { id: "step", type: "number", autocomplete: "off" });
  const form = element(
    "form",
    { class: "field" },
    element("label", { for: "step" }, "Step"),
    field,
    element("button", { type: "submit" }, "Show"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const step = Number(field.value);
    if (field.value !== "" && Number.isInteger(step) && step >= 0 && step < 2 ** 48) again({ step, chosen: true });
  });
  const status = choice(
    "Verdict",
    "status",
    STATUSES.map((each) => [each, each]),
    (value) => again({ status: value }),
  );
  const newest = button("Follow the current step", () => again({ step: null, chosen: false }));
  const turn = (cursors) => {
    again({ cursors, chosen: true }); // a page belongs to one step, so the view stops following the run
    panel.element.scrollIntoView();
  };
  const back = button("Previous", () => turn(state.cursors.slice(0, -1)));
  const on = button("Next", () => turn([...state.cursors, state.next]));
  const panel = new Panel(
    "Rollouts",
    element("div", { class: "bar" }, form, status.element, newest),
    words,
    table.element,
    element("div", { class: "buttons" }, back, on),
  );

  const samples = new Samples();
  const sampled = session.feed({
    everyMs: 15_000,
    paused: () => session.runless,
    ask: async (signal) => {
      const step = state.chosen ? state.step : null;
      return { step, found: await session.api.get("/v1/run/samples", { step }, { signal }) };
    },
    take: ({ step, found }) => {
      if (step !== (state.chosen ? state.step : null)) return sampled.again();
      Object.assign(state, { sampled: found });
      samples.panel.failed(null);
    },
    failed: (error) => samples.panel.failed(error),
  });
  const feed = session.feed({
    everyMs: 5000,
    paused: () => session.runless,
    ask: async (signal) => {
      const asked = state.cursors;
      const step = state.chosen ? state.step : current(await session.api.get("/v1/run", {}, { signal }))?.step;
      const query = { step: step ?? 0, status: state.status, limit: PAGE, links: "false", cursor: asked.at(-1) };
      return { page: await session.api.get("/v1/run/rollouts", query, { signal }), asked, step: step ?? 0 };
    },
    take: ({ page, asked, step }) => {
      if (asked !== state.cursors) return feed.again();
      Object.assign(state, { items: page.items, next: page.next_cursor, step });
      if (document.activeElement !== field) field.value = String(step);
      panel.failed(null);
    },
    failed: (error) => panel.failed(error),
  });

  return {
    title: "Rollouts",
    element: element("div", {}, panel.element, samples.element),
    render() {
      show(samples.element, !session.runless);
      if (state.sampled !== null) samples.show(state.sampled, state.chosen);
      show(newest, state.chosen);
      show(back, state.cursors.length > 1);
      show(on, state.next !== null);
      if (session.runless) return say(words, "This pool has no run.");
      if (state.items === null) return;
      const going = state.chosen ? "" : " This is the current step; the view follows the run.";
      say(
        words,
        `Step ${state.step}: ${count(state.items.length, "file")} shown, in the order of their leases.${going}`,
      );
      table.show(state.items.map((item) => rolloutRow(item, session.now())));
    },
  };
}
