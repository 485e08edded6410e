// Answers of the policy to held-out prompts, before and after learning. All texts are untrusted.

import { amount, count } from "../core/format.mjs";
import { cell } from "./cells.mjs";

export const ANSWER_COLUMNS = [
  { name: "Prompt", text: true },
  { name: "Before", text: true },
  { name: "After", text: true },
];

const LONGEST = 500;

/** Rows with a prompt and the answers of the first and of the newest evaluated version. */
export function answerRows({ before, after }) {
  const later = (place, prompt) => (after?.answers ?? []).filter((each, at) => at === place && each.prompt === prompt)[0];
  return (before?.answers ?? []).map((each, place) => ({
    key: String(place),
    cells: [textCell(each.prompt), answerCell(each), answerCell(later(place, each.prompt))],
  }));
}

/** Describes in a sentence which versions answered, and how many answers are right. */
export function answerWords({ before, after }) {
  if (!before || !after) return "";
  const told = (each) =>
    `version ${amount(each.version, 0)}: ${amount(each.answers.filter((one) => one.correct).length, 0)} of ${count(each.answers.length, "answer")} right`;
  return `The most probable answers to prompts that are never trained on. Before, ${told(before)}; after, ${told(after)}.`;
}

function answerCell(answer) {
  if (!answer) return cell("–");
  const { text } = textCell(answer.answer);
  return { text: `${answer.correct ? "right" : "wrong"}: ${text}`, tone: answer.correct ? "good" : undefined };
}

function textCell(text) {
  return cell(String(text).slice(0, 2 * LONGEST).replace(/\s*\n\s*/g, " ↵ "), { most: LONGEST });
}
