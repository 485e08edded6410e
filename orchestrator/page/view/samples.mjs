// Panel with sampled rollouts as text.

import { sampleTexts, sampleWords } from "../rows/samples.mjs";
import { element, say } from "./dom.mjs";
import { Panel } from "./panel.mjs";

export class Samples {
  constructor() {
    this.drawn = "";
    this.words = element("p", { class: "note", role: "status" });
    this.list = element("div");
    this.panel = new Panel("Sampled rollouts", this.words, this.list);
    this.element = this.panel.element;
  }

  /** Shows an answer of `/v1/run/samples`; elements are replaced only if it differs, so that a selection stays. */
  show(found, chosen) {
    say(this.words, sampleWords(found, chosen));
    const state = JSON.stringify(found.samples);
    if (state === this.drawn) return;
    this.drawn = state;
    this.list.replaceChildren(...sampleTexts(found.samples).map(sample));
  }
}

function sample({ work, title, href, facts, prompt, answer }) {
  const link = href ? element("a", { href, title, class: "code" }, work) : element("span", { title, class: "code" }, work);
  const texts = [["Prompt", prompt], ["Answer", answer]].map(([name, text]) =>
    element("div", {}, element("dt", {}, name), element("dd", { class: "said" }, text)),
  );
  return element("div", { class: "sample" }, element("p", { class: "note" }, "Work ", link, `: ${facts}`), element("dl", {}, texts));
}
