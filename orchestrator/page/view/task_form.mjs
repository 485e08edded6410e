// Form that posts a task.

import { newKey } from "../core/api.mjs";
import { specOf } from "../rows/task_form.mjs";
import { choice, element } from "./dom.mjs";
import { field, sendingForm } from "./form.mjs";

/** Creates the form in a closed box; `posted(task)` receives the new task. */
export function taskForm(session, posted) {
  const name = field("task-name", "Name", "text", { maxlength: "63" });
  const image = field("task-image", "Image", "text", { maxlength: "512" });
  const command = field("task-command", "Command", "textarea", { hint: "one argument per line; empty: the image's own" });
  const environment = field("task-environment", "Environment", "textarea", { hint: "NAME=VALUE, one per line; secrets: muster pool set-secrets" });
  const replicas = field("task-replicas", "Nodes", "number", { min: "1", max: "100000", hint: "empty: every node that fits" });
  const priority = field("task-priority", "Priority", "number", { value: "0", min: "-100", max: "100" });
  const cpus = field("task-cpus", "CPUs", "text", { value: "1" });
  const memory = field("task-memory", "Memory in MiB", "number", { value: "1024", min: "16" });
  const gpus = field("task-gpus", "GPUs", "number", { value: "0", min: "0", max: "64" });
  const network = choice("Network", "task-network", [["bridge", "internet"], ["none", "none"]], () => {});
  const every = { name, image, command, environment, replicas, priority, cpus, memory, gpus };
  let key = newKey();
  const form = sendingForm({
    label: "Post the task",
    children: [...Object.values(every).map((each) => each.element), network.element],
    send: async () => {
      const values = Object.fromEntries(Object.entries(every).map(([part, each]) => [part, each.input.value]));
      const found = specOf({ ...values, network: network.select.value });
      if (found.fault) return found;
      const task = await session.api.post("/v1/tasks", { spec: found.spec }, { once: key });
      key = newKey(); // the same key would return the same task again
      box.open = false;
      posted(task);
    },
  });
  for (const each of form.querySelectorAll("input, textarea, select")) each.addEventListener("input", () => (key = newKey()));
  const box = element("details", {}, element("summary", {}, "Post a task"), form);
  return box;
}
