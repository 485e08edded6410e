// Curves of the trainer: the metrics of each learned step, as the trainer reports them.

import { precise } from "../core/format.mjs";

const MOST_STEPS = 500; // the orchestrator keeps as many

/** The curves, each with the metric's name, a heading and its unit. */
export const TRAINED_CURVES = [
  { name: "reward", title: "Trainer: reward", what: "Mean reward of the verified rollouts" },
  { name: "loss", title: "Trainer: loss", what: "Loss" },
  { name: "entropy", title: "Trainer: entropy", what: "Mean entropy per token, in nats" },
  { name: "kl", title: "Trainer: KL to the reference", what: "Estimated KL divergence to the reference policy, in nats per token" },
  { name: "sampler_kl", title: "Trainer: KL to the generating policies", what: "Estimated KL divergence to the policies that generated the rollouts, in nats per token" },
  { name: "gradient_norm", title: "Trainer: gradient norm", what: "Norm of the gradient before clipping" },
  { name: "tokens_per_second", title: "Trainer: tokens per second", what: "Answer tokens learned per second, without waiting" },
  { name: "staleness", title: "Trainer: staleness", what: "Mean number of versions that the learning policy is ahead of the generating one" },
];

/** The trainer's metrics by step. A trainer that learns a step again has abandoned the later ones. */
export class TrainedSteps {
  constructor() {
    this.steps = [];
  }

  /** The first step to fetch next: the last one, which tells whether the trainer went back; null to fetch the newest. */
  get first() {
    return this.steps.at(-1)?.step ?? null;
  }

  /** Adds the steps that were fetched from `first` on; begins anew if the last known step is not among them. */
  take(items, first) {
    const known = items.length > 0 && items[0].step === first ? this.steps.slice(0, -1) : [];
    this.steps = [...known, ...items].slice(-MOST_STEPS);
  }

  /** Returns the points `{x, y}` of a metric. */
  points(name) {
    return this.steps.filter((each) => Number.isFinite(each[name])).map((each) => ({ x: each.step, y: each[name] }));
  }
}

/** Describes a curve in a sentence, for screen readers. */
export function trainedWords(points, what) {
  if (points.length < 2) return "The trainer has not reported two steps yet.";
  const [first, last] = [points[0], points.at(-1)];
  return `${what}: ${precise(first.y)} at step ${first.x}, ${precise(last.y)} at step ${last.x}.`;
}
