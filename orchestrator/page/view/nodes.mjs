// View of the list of nodes. It reads one page at a time, so that its cost does not depend on the size of the pool.

import { isAddress, nodeLink } from "../core/place.mjs";
import { COLUMNS, SPEED, STATES, nodeRow, pageWords } from "../rows/nodes.mjs";
import { button, choice, element, say, show } from "./dom.mjs";
import { Panel } from "./panel.mjs";
import { Table } from "./table.mjs";

const PAGE = 100;
const EVERY_MS = 5000;
const EVERY_FILTERED_MS = 15_000; // with a filter the orchestrator searches many nodes for each page

export function nodesView(session) {
  const table = new Table({ caption: "Nodes of the pool", columns: COLUMNS, empty: "" });
  const words = element("p", { class: "note", role: "status" });
  const state = { filter: "", cursors: [null], next: null, nodes: null };
  const again = (change) => {
    Object.assign(state, change);
    feed.everyMs = state.filter ? EVERY_FILTERED_MS : EVERY_MS;
    feed.again();
  };
  const filter = choice("State", "state", [["", "all"], ...STATES.map((each) => [each, each])], (value) =>
    again({ filter: value, cursors: [null], next: null }),
  );
  const turn = (cursors) => {
    again({ cursors });
    panel.element.scrollIntoView();
  };
  const back = button("Previous", () => turn(state.cursors.slice(0, -1)));
  const on = button("Next", () => turn([...state.cursors, state.next]));
  const panel = new Panel(
    "Nodes",
    element("div", { class: "bar" }, filter.element, finder()),
    words,
    table.element,
    element("div", { class: "buttons" }, back, on),
  );

  const feed = session.feed({
    everyMs: EVERY_MS,
    ask: async (signal) => {
      const asked = state.cursors;
      const query = { limit: PAGE, cursor: asked.at(-1), state: state.filter, metric: SPEED };
      return { page: await session.api.get("/v1/nodes", query, { signal }), asked };
    },
    take: ({ page, asked }) => {
      if (asked !== state.cursors) return again({}); // the user turned the page meanwhile
      Object.assign(state, { nodes: page.nodes, next: page.next_cursor });
      panel.failed(null);
    },
    failed: (error) => panel.failed(error),
  });

  return {
    title: "Nodes",
    element: panel.element,
    render() {
      show(back, state.cursors.length > 1);
      show(on, state.next !== null);
      if (state.nodes === null) return;
      const found = { found: state.nodes.length, filtered: state.filter !== "", more: state.next !== null };
      say(words, pageWords(found));
      table.show(
        state.nodes.map((node) => nodeRow(node, session.now())),
        "",
      );
    },
  };
}

/** Creates the form that opens a node's view by the node's address. */
function finder() {
  const field = element("input", {
    id: "address",
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 60,
  });
  const fault = element("span", { class: "fault", role: "alert" });
  const form = element(
    "form",
    { class: "field" },
    element("label", { for: "address" }, "Address"),
    field,
    element("button", { type: "submit" }, "Show"),
    fault,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const address = field.value.trim();
    say(fault, isAddress(address) ? "" : "An address is 0x and 40 hex digits.");
    if (isAddress(address)) location.hash = nodeLink(address);
  });
  return form;
}
