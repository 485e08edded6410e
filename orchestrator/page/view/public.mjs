// The public page: the pool for people without a token.

import { date } from "../core/format.mjs";
import {
  PROVIDER_COLUMNS,
  VERDICT_COLUMNS,
  countedWords,
  earningPoints,
  earningWords,
  joinSteps,
  providerRow,
  publicTiles,
  stateWords,
  termFields,
  verdictRows,
} from "../rows/public.mjs";
import { STEP_COLUMNS, curveWords, stepRows } from "../rows/run.mjs";
import { Chart } from "./chart.mjs";
import { Commands } from "./commands.mjs";
import { element, say, show } from "./dom.mjs";
import { Fields, Panel } from "./panel.mjs";
import { Table, dress } from "./table.mjs";
import { Tiles } from "./tiles.mjs";

const STEPS_SHOWN = 6;

export function publicView() {
  const state = element("p", { class: "note" });
  const tiles = new Tiles();
  const reward = new Chart((points) => curveWords(points, "reward"));
  const length = new Chart((points) => curveWords(points, "length"));
  const steps = new Table({ caption: "Newest steps of the run", columns: STEP_COLUMNS, empty: "No step has begun." });
  const providers = new Table({
    caption: "Providers by earnings",
    columns: PROVIDER_COLUMNS,
    empty: "No provider has earned anything yet.",
  });
  const days = new Chart(earningWords, { label: date });
  const verdicts = new Table({ caption: "Verdicts by outcome", columns: VERDICT_COLUMNS, empty: "" });
  const counted = element("p", { class: "note" });
  const terms = new Fields();
  const unread = element("p", { class: "note", hidden: true }, "The terms can't be read from the ledger at the moment.");
  const join = new Commands();
  const progress = [
    new Panel("Reward by step", reward.element),
    new Panel("Length of answers by step", length.element),
    new Panel("Steps", steps.element),
  ].map((panel) => panel.element);
  return {
    element: element(
      "div",
      {},
      state,
      tiles.element,
      ...progress,
      new Panel("Providers", providers.element).element,
      new Panel("Payments per day", days.element).element,
      new Panel("Verdicts", verdicts.element, counted).element,
      new Panel("Terms", unread, terms.element).element,
      new Panel("Join", join.element).element,
    ),
    show(summary, now) {
      say(state, stateWords(summary, now));
      tiles.show(publicTiles(summary));
      progress.forEach((part) => show(part, summary.run !== null));
      reward.show(pointsOf(summary.figures, "reward"));
      length.show(pointsOf(summary.figures, "length"));
      const rewards = new Map(summary.figures.map((each) => [each.step, each.reward]));
      steps.show(stepRows({ steps: summary.steps.slice(-STEPS_SHOWN) }, rewards));
      providers.show(summary.providers.map(providerRow));
      days.show(earningPoints(summary.days));
      verdicts.show(verdictRows(summary.verdicts));
      say(counted, countedWords(summary, now));
      terms.show(termFields(summary.terms), dress);
      show(unread, summary.terms === null);
      join.show(joinSteps(summary));
    },
  };
}

function pointsOf(figures, name) {
  const known = figures.filter((each) => each[name] !== null).sort((a, b) => a.step - b.step);
  return known.map((each) => ({ x: each.step, y: each[name] }));
}
