// View of the pool's events: all of them as they happen, or those of one group or node.

import { isAddress } from "../core/place.mjs";
import { words } from "../core/problem.mjs";
import { COLUMNS, GROUPS, eventRow, wantedWords } from "../rows/events.mjs";
import { choice, element, say } from "./dom.mjs";
import { Panel } from "./panel.mjs";
import { Table } from "./table.mjs";

const MOST = 100;

export function eventsView(session) {
  const table = new Table({
    caption: "Events of the pool, newest first",
    columns: COLUMNS,
    empty: "There is no event yet.",
  });
  const state = { kind: "", node: "", found: null };
  const about = element("p", { class: "note", role: "status" });
  const again = (change) => {
    Object.assign(state, change, { found: null });
    feed.again();
    view.render();
  };
  const group = choice("Show", "kind", GROUPS, (value) => again({ kind: value }));
  const field = element("input", { id: "of-node", type: "text", autocomplete: "off", spellcheck: "false", maxlength: "42" });
  field.addEventListener("change", () => again({ node: isAddress(field.value.trim()) ? field.value.trim() : "" }));
  const ofNode = element("span", { class: "field" }, element("label", { for: "of-node" }, "Node"), field);
  const panel = new Panel("Events", element("div", { class: "bar" }, group.element, ofNode), about, table.element);
  const isFiltered = () => state.kind !== "" || state.node !== "";
  const feed = session.feed({
    everyMs: 5000,
    paused: () => !isFiltered(),
    ask: async (signal) => {
      const { kind, node } = state;
      const page = await session.api.get("/v1/events", { kind, node, sort: "newest", limit: MOST }, { signal });
      return { kind, node, page };
    },
    take: ({ kind, node, page }) => {
      if (kind === state.kind && node === state.node) state.found = page.events;
      panel.failed(null);
    },
    failed: (error) => panel.failed(error),
  });
  const view = {
    title: "Events",
    element: panel.element,
    render() {
      const fault = session.eventsFault === null ? "" : `Live updates are interrupted. ${words(session.eventsFault)}`;
      say(about, isFiltered() ? wantedWords(state.found) : fault || "Newest first, as they happen.");
      const events = isFiltered() ? (state.found ?? []) : session.events.events;
      table.show(events.map((event) => eventRow(event, session.now())));
    },
  };
  return view;
}
