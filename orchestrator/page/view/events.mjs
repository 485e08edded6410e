// View of the pool's events, updated as they arrive.

import { words } from "../core/problem.mjs";
import { COLUMNS, eventRow } from "../rows/events.mjs";
import { element, say } from "./dom.mjs";
import { Panel } from "./panel.mjs";
import { Table } from "./table.mjs";

export function eventsView(session) {
  const table = new Table({
    caption: "Events of the pool, newest first",
    columns: COLUMNS,
    empty: "There is no event yet.",
  });
  const about = element("p", { class: "note" });
  const panel = new Panel("Events", about, table.element);
  return {
    title: "Events",
    element: panel.element,
    render() {
      say(
        about,
        session.eventsFault === null ? "Newest first, as they happen." : `Live updates are interrupted. ${words(session.eventsFault)}`,
      );
      table.show(session.events.events.map((event) => eventRow(event, session.now())));
    },
  };
}
