// Which view is wanted: the part of the address behind `#`, which no server ever sees.

export const VIEWS = ["run", "nodes", "tasks", "rollouts", "events"];
const ADDRESS = /^0x[0-9a-fA-F]{40}$/;

/** `{view, node}` of a fragment; null if it names no view, as the link to the content does. */
export function placeOf(fragment) {
  const [name, rest] = fragment.replace(/^#/, "").split("/", 2);
  if (name === "") return { view: "run", node: null };
  if (name === "node") return ADDRESS.test(rest ?? "") ? { view: "node", node: rest } : { view: "nodes", node: null };
  return VIEWS.includes(name) ? { view: name, node: null } : null;
}

/** The fragment of a node's view; empty for what is no address. */
export function nodeLink(address) {
  return isAddress(address) ? `#node/${address}` : "";
}

export function isAddress(text) {
  return ADDRESS.test(text);
}
