// View of the pool's money: escrow, burn rate, gas, payments per day, and accounts of nodes.

import { date } from "../core/format.mjs";
import { GAS_COLUMNS, NODE_COLUMNS, accountRow, accountsWords, gasRow, moneyTiles, moneyWarnings } from "../rows/money.mjs";
import { earningPoints, earningWords } from "../rows/public.mjs";
import { Chart } from "./chart.mjs";
import { button, element, say, show } from "./dom.mjs";
import { Panel } from "./panel.mjs";
import { Table } from "./table.mjs";
import { Tiles } from "./tiles.mjs";

const PAGE = 100;

export function moneyView(session) {
  const tiles = new Tiles();
  const warnings = element("ul", { class: "fault", hidden: true });
  const chart = new Chart(earningWords, { label: date });
  const gas = new Table({ caption: "Accounts that pay gas", columns: GAS_COLUMNS, empty: "" });
  const nodes = new Table({ caption: "Earnings and slashes of nodes", columns: NODE_COLUMNS, empty: "The pool knows no node yet." });
  const about = element("p", { class: "note", role: "status" });
  const state = { money: null, nodes: null, cursors: [null], next: null };
  const turn = (cursors) => {
    state.cursors = cursors;
    nodeFeed.again();
    nodePanel.element.scrollIntoView();
  };
  const back = button("Previous", () => turn(state.cursors.slice(0, -1)));
  const on = button("Next", () => turn([...state.cursors, state.next]));
  const dayPanel = new Panel("Payments per day", chart.element);
  const gasPanel = new Panel("Gas", gas.element);
  const nodePanel = new Panel("Nodes", about, nodes.element, element("div", { class: "buttons" }, back, on));
  session.feed({
    everyMs: 10_000,
    ask: (signal) => session.api.get("/v1/money", {}, { signal }),
    take: (found) => ((state.money = found), dayPanel.failed(null)),
    failed: (error) => dayPanel.failed(error),
  });
  const nodeFeed = session.feed({
    everyMs: 15_000,
    ask: async (signal) => {
      const asked = state.cursors;
      return { asked, page: await session.api.get("/v1/money/nodes", { limit: PAGE, after: asked.at(-1) }, { signal }) };
    },
    take: ({ asked, page }) => {
      if (asked !== state.cursors) return nodeFeed.again();
      Object.assign(state, { nodes: page.accounts, next: page.next_cursor });
      nodePanel.failed(null);
    },
    failed: (error) => nodePanel.failed(error),
  });
  return {
    title: "Money",
    element: element("div", {}, tiles.element, warnings, dayPanel.element, gasPanel.element, nodePanel.element),
    render() {
      show(back, state.cursors.length > 1);
      show(on, state.next !== null);
      if (state.money !== null) {
        tiles.show(moneyTiles(state.money));
        const told = moneyWarnings(state.money, session.now());
        if (told.join() !== [...warnings.children].map((each) => each.textContent).join())
          warnings.replaceChildren(...told.map((each) => element("li", {}, each)));
        show(warnings, told.length > 0);
        chart.show(earningPoints(state.money.days));
        gas.show(state.money.gas.map(gasRow));
      }
      if (state.nodes === null) return;
      nodes.show(state.nodes.map(accountRow));
      say(about, accountsWords(state.nodes.length, state.next !== null));
    },
  };
}
