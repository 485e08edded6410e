// View of the pool's tasks and their states.

import { includes } from "../core/access.mjs";
import { COLUMNS, taskRow } from "../rows/tasks.mjs";
import { button, element, show } from "./dom.mjs";
import { Panel } from "./panel.mjs";
import { Table } from "./table.mjs";
import { taskForm } from "./task_form.mjs";

const PAGE = 100;

export function tasksView(session) {
  const table = new Table({
    caption: "Tasks of the pool, oldest first",
    columns: COLUMNS,
    empty: "No task was posted: `muster pool run` posts one.",
  });
  const state = { cursors: [null], next: null, tasks: null };
  const again = (cursors) => {
    state.cursors = cursors;
    feed.again();
    panel.element.scrollIntoView();
  };
  const back = button("Previous", () => again(state.cursors.slice(0, -1)));
  const on = button("Next", () => again([...state.cursors, state.next]));
  const form = taskForm(session, (task) => {
    session.announce(`Done: ${task.spec.name} was posted.`);
    feed.again();
  });
  const panel = new Panel("Tasks", form, table.element, element("div", { class: "buttons" }, back, on));
  const feed = session.feed({
    everyMs: 5000,
    ask: (signal) => session.api.get("/v1/tasks", { limit: PAGE, cursor: state.cursors.at(-1) }, { signal }),
    take: (page) => {
      Object.assign(state, { tasks: page.tasks, next: page.next_cursor });
      panel.failed(null);
    },
    failed: (error) => panel.failed(error),
  });
  return {
    title: "Tasks",
    element: panel.element,
    render() {
      show(form, includes(session.scope, "operate"));
      show(back, state.cursors.length > 1);
      show(on, state.next !== null);
      if (state.tasks !== null) table.show(state.tasks.map((task) => taskRow(task, session.now())));
    },
  };
}
