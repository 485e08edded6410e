// The selected view: the fragment of the address, which is never sent to a server.

export const VIEWS = ["run", "nodes", "tasks", "rollouts", "events"];
const ADDRESS = /^0x[0-9a-fA-F]{40}$/;

/** Returns `{view, node}` of a fragment; null if it names no view, like the skip link. */
export function placeOf(fragment) {
  const [name, rest] = fragment.replace(/^#/, "").split("/", 2);
  if (name === "") return { view: "run", node: null };
  if (name === "node") return ADDRESS.test(rest ?? "") ? { view: "node", node: rest } : { view: "nodes", node: null };
  return VIEWS.includes(name) ? { view: name, node: null } : null;
}

/** Returns the fragment of a node's view; empty for an invalid address. */
export function nodeLink(address) {
  return isAddress(address) ? `#node/${address}` : "";
}

export function isAddress(text) {
  return ADDRESS.test(text);
}
