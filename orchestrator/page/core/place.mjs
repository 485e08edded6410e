// The selected view, as stored in the fragment of the page's URL. Browsers never send the fragment to a server.

export const VIEWS = ["run", "money", "nodes", "tasks", "rollouts", "events"];
const ADDRESS = /^0x[0-9a-fA-F]{40}$/;
const TASK = /^[0-9a-f]{32}$/;

/** Returns the fragment that selects a task's view; empty for an invalid id. */
export function taskLink(id) {
  return TASK.test(id) ? `#task/${id}` : "";
}

/** Returns the `{view, node}` that a fragment selects; null if it selects no view, like the fragment of the skip link. */
export function placeOf(fragment) {
  const [name, rest] = fragment.replace(/^#/, "").split("/", 2);
  if (name === "") return { view: "run", node: null };
  if (name === "node") return ADDRESS.test(rest ?? "") ? { view: "node", node: rest } : { view: "nodes", node: null };
  if (name === "work") return WORK.test(rest ?? "") ? { view: "work", node: null, key: rest } : { view: "rollouts", node: null };
  if (name === "task") return TASK.test(rest ?? "") ? { view: "task", node: null, key: rest } : { view: "tasks", node: null };
  return VIEWS.includes(name) ? { view: name, node: null } : null;
}

const WORK = /^0x[0-9a-f]{64}$/;

/** Returns the fragment that selects the evidence of a work item; empty for an invalid key. */
export function workLink(key) {
  return WORK.test(key) ? `#work/${key}` : "";
}

/** Returns the key of the work item that a fragment selects; null if it selects none. */
export function workOf(fragment) {
  const [name, key] = fragment.replace(/^#/, "").split("/", 2);
  return name === "work" && WORK.test(key ?? "") ? key : null;
}

/** Returns the fragment that selects a node's view; empty for an invalid address. */
export function nodeLink(address) {
  return isAddress(address) ? `#node/${address}` : "";
}

export function isAddress(text) {
  return ADDRESS.test(text);
}
