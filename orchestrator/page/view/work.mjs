// View of the evidence of one verdict, for the owner.

import { evidenceView } from "./evidence.mjs";

export function workView(session, key) {
  const view = evidenceView(key, ["#rollouts", "← All rollouts"]);
  session.feed({
    everyMs: 60_000, // a dispute may bring another verdict
    ask: (signal) => session.api.get(`/v1/run/rollouts/${encodeURIComponent(key)}/evidence`, {}, { signal }),
    take: (evidence) => (view.failed(null), view.show(evidence, session.now())),
    failed: (error) => view.failed(error),
  });
  return { title: view.title, element: view.element, render() {} };
}
