// View of one node: its fields and actions, history, gauges, and the log of its task.

import { nodePath } from "../core/api.mjs";
import { actionsFor } from "../rows/actions.mjs";
import { accountFields } from "../rows/money.mjs";
import { HISTORY_COLUMNS, historyRow, metricRows, nodeFields } from "../rows/nodes.mjs";
import { confirm } from "./confirm.mjs";
import { button, element, say } from "./dom.mjs";
import { logPanel } from "./log.mjs";
import { Fields, Panel } from "./panel.mjs";
import { Table, dress } from "./table.mjs";

export function nodeView(session, address) {
  const fields = new Fields();
  const bar = element("div", { class: "buttons" });
  const may = element("p", { class: "note" });
  const history = new Table({
    caption: "State changes of the node, newest first",
    columns: HISTORY_COLUMNS,
    empty: "There is no state change yet.",
  });
  const metrics = new Table({
    caption: "Gauges of its last heartbeat",
    columns: [{ name: "Gauge" }, { name: "Value", number: true }],
    empty: "The last heartbeat had no gauges.",
    slim: true,
  });
  const panel = new Panel(
    `Node`,
    element("p", {}, element("code", { class: "whole" }, address)),
    bar,
    may,
    fields.element,
  );
  const historyPanel = new Panel("History", history.element);
  const metricPanel = new Panel("Metrics", metrics.element);
  const account = new Fields();
  const accountPanel = new Panel("Earnings and slashes", account.element);
  session.feed({
    everyMs: 15_000,
    ask: (signal) => session.api.get(nodePath(address, "account"), {}, { signal }),
    take: (found) => (account.show(accountFields(found, session.now()), dress), accountPanel.failed(null)),
    failed: (error) => accountPanel.failed(error),
  });
  const log = logPanel(session, address);
  const state = { node: null, history: [], metrics: {}, shown: "" };

  const about = session.feed({
    everyMs: 3000,
    ask: (signal) => session.api.get(nodePath(address), {}, { signal }),
    take: (node) => {
      state.node = node;
      log.assigned(node.assignment?.id ?? null);
      panel.failed(null);
    },
    failed: (error) => panel.failed(error),
  });
  const past = session.feed({
    everyMs: 10_000,
    ask: (signal) => session.api.get(nodePath(address, "history"), { limit: 100 }, { signal }),
    take: (page) => ((state.history = page.entries), historyPanel.failed(null)),
    failed: (error) => historyPanel.failed(error),
  });
  session.feed({
    everyMs: 5000,
    ask: (signal) => session.api.get(nodePath(address, "metrics"), {}, { signal }),
    take: (page) => ((state.metrics = page.metrics), metricPanel.failed(null)),
    failed: (error) => metricPanel.failed(error),
  });

  async function carryOut(action) {
    const done = await confirm(action, async (reason) => {
      state.node = await session.api.post(nodePath(address, action.name), { reason });
    });
    if (!done) return;
    session.announce(`Done: ${action.label.toLowerCase()}. The node is ${state.node.state}.`);
    about.again();
    past.again();
  }

  function drawActions() {
    const actions = actionsFor(state.node, session.scope);
    const wanted = JSON.stringify(actions);
    if (wanted === state.shown) return; // unchanged buttons are not replaced, so that they keep the focus
    state.shown = wanted;
    bar.replaceChildren(
      ...actions.map((action) =>
        button(`${action.label}…`, () => carryOut(action), {
          disabled: !action.allowed,
          class: action.grave ? "grave" : null,
        }),
      ),
    );
    const beyond = actions.filter((action) => !action.allowed);
    say(
      may,
      beyond
        .map((action) => `“${action.label}” needs a token of scope ${action.needs}; this one has ${session.scope}.`)
        .join(" "),
    );
  }

  return {
    title: `Node ${address.slice(0, 10)}`,
    element: element(
      "div",
      {},
      element("p", {}, element("a", { href: "#nodes" }, "← All nodes")),
      panel.element,
      accountPanel.element,
      historyPanel.element,
      metricPanel.element,
      log.element,
    ),
    render() {
      if (state.node === null) return;
      drawActions();
      const now = session.now();
      fields.show(nodeFields(state.node, now), dress);
      const oldest = state.history.length;
      history.show(state.history.map((entry, index) => historyRow(entry, oldest - index, now)));
      metrics.show(metricRows(state.metrics));
    },
  };
}
