// View of one task: its fields, and the actions that stop, start and change it.

import { includes } from "../core/access.mjs";
import { changeOf } from "../rows/task_form.mjs";
import { stopQuestion, taskFields } from "../rows/tasks.mjs";
import { confirm } from "./confirm.mjs";
import { button, element, say, show } from "./dom.mjs";
import { field, sendingForm } from "./form.mjs";
import { Fields, Panel } from "./panel.mjs";
import { dress } from "./table.mjs";

export function taskView(session, id) {
  const path = `/v1/tasks/${encodeURIComponent(id)}`;
  const fields = new Fields();
  const may = element("p", { class: "note" });
  const state = { task: null, filled: false };
  const patch = async (body, said) => {
    state.task = await session.api.post(path, body, { method: "PATCH" });
    session.announce(said);
    feed.again();
  };
  const stop = button("Stop…", () => confirm(stopQuestion(state.task), () => patch({ desired_state: "stopped" }, "Done: the task is being stopped.")), { class: "grave" });
  const start = button("Start", () => patch({ desired_state: "running" }, "Done: the task starts again.").catch((error) => panel.failed(error)));
  const replicas = field("task-replicas", "Nodes", "number", { min: "1", max: "100000", hint: "empty: every node that fits" });
  const priority = field("task-priority", "Priority", "number", { min: "-100", max: "100", hint: "a node runs the task with the highest one" });
  const form = sendingForm({
    label: "Change",
    children: [replicas.element, priority.element],
    send: async () => {
      const found = changeOf({ replicas: replicas.input.value, priority: priority.input.value });
      if (found.fault) return found;
      await patch(found.change, "Done: the task was changed.");
    },
  });
  const panel = new Panel("Task", element("p", {}, element("code", { class: "whole" }, id)), element("div", { class: "buttons" }, stop, start), may, fields.element);
  const changePanel = new Panel("Change the task", form);
  const feed = session.feed({
    everyMs: 3000,
    ask: (signal) => session.api.get(path, {}, { signal }),
    take: (task) => ((state.task = task), panel.failed(null)),
    failed: (error) => panel.failed(error),
  });
  return {
    title: "Task",
    element: element("div", {}, element("p", {}, element("a", { href: "#tasks" }, "← All tasks")), panel.element, changePanel.element),
    render() {
      const { task } = state;
      const allowed = includes(session.scope, "operate");
      const running = task !== null && task.desired_state === "running";
      show(stop, running);
      show(start, task !== null && !running);
      show(changePanel.element, task !== null && allowed);
      for (const each of [stop, start]) if (each.disabled === allowed) each.disabled = !allowed;
      say(may, allowed || task === null ? "" : `Changes need a token of scope operate; this one has ${session.scope}.`);
      if (task === null) return;
      if (!state.filled) {
        state.filled = true;
        replicas.input.value = task.spec.replicas === "every-node" ? "" : String(task.spec.replicas);
        priority.input.value = String(task.spec.priority);
      }
      fields.show(taskFields(task, session.now()), dress);
    },
  };
}
