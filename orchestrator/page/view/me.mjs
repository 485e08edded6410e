// The contributor's page: earnings, nodes, work and stake of a provider, and the evidence of a verdict.

import { date } from "../core/format.mjs";
import { earningPoints, earningWords, verdictRows, VERDICT_COLUMNS, countedWords } from "../rows/public.mjs";
import {
  DAY_COLUMNS,
  NODE_COLUMNS,
  UNBOND_COLUMNS,
  WORK_COLUMNS,
  dayRows,
  disputable,
  disputeSteps,
  myNodeRow,
  myTiles,
  myWorkRow,
  nodesWords,
  stakeFields,
  unbondRows,
} from "../rows/me.mjs";
import { Chart } from "./chart.mjs";
import { Commands } from "./commands.mjs";
import { button, element, say, show } from "./dom.mjs";
import { evidenceView } from "./evidence.mjs";
import { Fields, Panel } from "./panel.mjs";
import { Table, dress } from "./table.mjs";
import { Tiles } from "./tiles.mjs";

/** Creates the page. `turn(skip)` reads another page of works. */
export function meView(turn) {
  const tiles = new Tiles();
  const chart = new Chart(earningWords, { label: date });
  const days = new Table({ caption: "Earnings of the newest days", columns: DAY_COLUMNS, empty: "", slim: true });
  const nodes = new Table({ caption: "Your nodes", columns: NODE_COLUMNS, empty: "None of your nodes leased a slot here yet." });
  const about = element("p", { class: "note" });
  const works = new Table({ caption: "Your work, newest first", columns: WORK_COLUMNS, empty: "Your nodes have submitted nothing here." });
  const back = button("Newer", () => turn(Math.max(0, state.skip - state.limit)));
  const on = button("Older", () => turn(state.next));
  const verdicts = new Table({ caption: "Verdicts on your work by outcome", columns: VERDICT_COLUMNS, empty: "" });
  const counted = element("p", { class: "note" });
  const stake = new Fields();
  const unbonds = new Table({ caption: "Stake that you take back", columns: UNBOND_COLUMNS, empty: "", slim: true });
  const unread = element("p", { class: "note", hidden: true }, "The ledger can't be read at the moment.");
  const workPanel = new Panel("Work and verdicts", works.element, element("div", { class: "buttons" }, back, on));
  const state = { skip: 0, next: null, limit: 50 };
  return {
    title: "Your nodes",
    workPanel,
    element: element(
      "div",
      {},
      tiles.element,
      new Panel("Earnings per day", chart.element, days.element).element,
      workPanel.element,
      new Panel("Nodes", about, nodes.element).element,
      new Panel("Verdicts", verdicts.element, counted).element,
      new Panel("Stake and lock-up", unread, stake.element, unbonds.element).element,
    ),
    show(me, now) {
      tiles.show(myTiles(me));
      chart.show(earningPoints(me.days));
      days.show(dayRows(me.days));
      nodes.show(me.nodes.map((node) => myNodeRow(node, now)));
      say(about, nodesWords(me));
      verdicts.show(verdictRows(me.verdicts));
      say(counted, countedWords(me, now));
      show(unread, me.stake === null);
      show(stake.element, me.stake !== null);
      if (me.stake === null) return;
      stake.show(stakeFields(me.stake), dress);
      unbonds.show(unbondRows(me.stake, now));
    },
    showWorks(page, skip, now) {
      Object.assign(state, { skip, next: page.next_cursor });
      works.show(page.works.map((work) => myWorkRow(work, now)));
      show(back, skip > 0);
      show(on, page.next_cursor !== null);
    },
  };
}

/** Creates the view of one work item; `challengeS` is the pool's time for disputes. */
export function myWorkView(key) {
  const commands = new Commands();
  const dispute = element("div", { hidden: true }, element("h3", {}, "Dispute this verdict"), commands.element);
  const view = evidenceView(key, ["#", "← Your nodes"], dispute);
  return {
    ...view,
    offer(work, challengeS) {
      show(dispute, work !== undefined && disputable(work));
      if (work !== undefined && disputable(work)) commands.show(disputeSteps(work, challengeS));
    },
  };
}
