// First view of the page: overview of the pool and its run.

import { Curve, curveWords, filesWords, RELAY_COLUMNS, STEP_COLUMNS, pausedWords, relayRows, stepRows, tiles } from "../rows/run.mjs";
import { TRAINED_CURVES, TrainedSteps, trainedWords } from "../rows/trained.mjs";
import { ANSWER_COLUMNS, answerRows, answerWords } from "../rows/answers.mjs";
import { COLUMNS as EVENT_COLUMNS, eventRow } from "../rows/events.mjs";
import { Chart } from "./chart.mjs";
import { element, say, show } from "./dom.mjs";
import { Panel } from "./panel.mjs";
import { Table } from "./table.mjs";
import { Tiles } from "./tiles.mjs";

const EVENTS_SHOWN = 8;
const CURVES = [
  ["reward", "Reward by step", (points) => curveWords(points, "reward")],
  ["length", "Length of answers by step", (points) => curveWords(points, "length")],
  ["files", "Accepted files by step", filesWords],
];

export function runView(session) {
  const overview = new Tiles();
  const paused = element("p", { class: "fault", hidden: true });
  const without = element(
    "p",
    { class: "note", hidden: true },
    "This pool has no run: the orchestrator's settings name none.",
  );
  const charts = CURVES.map(([name, title, describe]) => ({ name, title, chart: new Chart(describe) }));
  const steps = new Table({ caption: "Steps of the run", columns: STEP_COLUMNS, empty: "No step has begun." });
  const answers = new Table({
    caption: "Answers to held-out prompts, before and after",
    columns: ANSWER_COLUMNS,
    empty: "No version has been evaluated yet.",
  });
  const answersNote = element("p", { class: "note", hidden: true });
  const relays = new Table({
    caption: "Checkpoint relays",
    columns: RELAY_COLUMNS,
    empty: "No relay is allowed, and the version names none.",
  });
  const events = new Table({
    caption: "The newest events of the pool",
    columns: EVENT_COLUMNS,
    empty: "There is no event yet.",
  });
  const trained = new TrainedSteps();
  const trainedCharts = TRAINED_CURVES.map(({ name, title, what }) => {
    const chart = new Chart((points) => trainedWords(points, what), { tight: name !== "reward" });
    return { name, chart, panel: new Panel(title, chart.element) };
  });
  const trainedPanel = trainedCharts[0].panel; // shows an error of all of them
  const trainedGrid = element("div", { class: "charts" }, trainedCharts.map(({ panel }) => panel.element));
  const curvePanels = charts.map(({ title, chart }) => new Panel(title, chart.element));
  const curvePanel = curvePanels[0];
  const stepPanel = new Panel("Steps", steps.element);
  const answerPanel = new Panel("Answers", answersNote, answers.element);
  const relayPanel = new Panel("Relays", relays.element);
  const eventPanel = new Panel(
    "Newest events",
    events.element,
    element("p", { class: "note" }, element("a", { href: "#events" }, "All events")),
  );
  const ofRun = [...curvePanels.map((panel) => panel.element), trainedGrid, stepPanel.element, answerPanel.element];
  const curve = new Curve();
  const state = { run: null, relays: [], answers: {} };

  session.feed({
    everyMs: 3000,
    paused: () => session.runless,
    ask: (signal) => session.api.get("/v1/run", {}, { signal }),
    take: (run) => ((state.run = run), stepPanel.failed(null)),
    failed: (error) => stepPanel.failed(error),
  });
  session.feed({
    everyMs: 10_000,
    paused: () => session.runless,
    ask: (signal) => session.api.get("/v1/run/figures", { first: curve.first }, { signal }),
    take: (page) => (curve.take(page.items), curvePanel.failed(null)),
    failed: (error) => curvePanel.failed(error),
  });
  session.feed({
    everyMs: 15_000,
    paused: () => session.runless,
    ask: async (signal) => {
      const first = trained.first;
      return { first, page: await session.api.get("/v1/run/trained", { first }, { signal }) };
    },
    take: ({ first, page }) => (trained.take(page.items, first), trainedPanel.failed(null)),
    failed: (error) => trainedPanel.failed(error),
  });
  session.feed({
    everyMs: 15_000,
    paused: () => session.runless,
    ask: (signal) => session.api.get("/v1/run/answers", {}, { signal }),
    take: (found) => ((state.answers = found), answerPanel.failed(null)),
    failed: (error) => answerPanel.failed(error),
  });
  session.feed({
    everyMs: 15_000,
    ask: (signal) => session.api.get("/v1/relays", {}, { signal }),
    take: (page) => ((state.relays = page.relays), relayPanel.failed(null)),
    failed: (error) => relayPanel.failed(error),
  });

  return {
    title: "Run",
    element: element("div", {}, overview.element, without, paused, ...ofRun, relayPanel.element, eventPanel.element),
    render() {
      overview.show(tiles(session.pool, state.run));
      show(without, session.runless);
      say(paused, pausedWords(state.run));
      show(paused, paused.textContent !== "");
      ofRun.forEach((part) => show(part, !session.runless));
      for (const { name, chart } of charts) chart.show(curve.points(name));
      for (const { name, chart, panel } of trainedCharts) {
        const points = trained.points(name);
        show(panel.element, points.length > 1 || panel === trainedPanel); // a chart measures its width, so it is shown first
        chart.show(points);
      }
      if (state.run) steps.show(stepRows(state.run, curve.rewards));
      answers.show(answerRows(state.answers));
      say(answersNote, answerWords(state.answers));
      show(answersNote, answersNote.textContent !== "");
      relays.show(relayRows(state.relays, state.run));
      events.show(session.events.events.slice(0, EVENTS_SHOWN).map((event) => eventRow(event, session.now())));
    },
  };
}
