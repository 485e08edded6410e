// Texts for the reason codes of verdicts on the ledger. A test compares them with protocol/verdicts.py.

export const OUTCOMES = { 1: "accepted", 2: "rejected", 3: "forged" };

export const REASONS = {
  0: "passed",
  1: "passed undecided",
  100: "fetch other bytes",
  200: "format unreadable",
  201: "format schema",
  202: "format too large",
  203: "format not finite",
  204: "format old",
  300: "identity other work",
  301: "identity copy",
  400: "seed prompts",
  401: "seed targets",
  402: "seed groups",
  403: "seed keys",
  500: "bounds reward",
  501: "bounds length",
  502: "bounds log probability",
  503: "bounds units",
  504: "bounds arithmetic",
  505: "bounds environment",
  506: "bounds turns",
  600: "termination early",
  601: "termination late",
  602: "termination unlikely",
  700: "reward differs",
  800: "computation proof malformed",
  801: "computation other model",
  802: "computation unconfirmed",
  900: "sampling replay",
  901: "sampling distribution",
  902: "sampling unconfirmed",
  903: "sampling budget",
  1000: "log probabilities differ",
  1001: "log probabilities unconfirmed",
  1100: "dialogue reply",
  1101: "dialogue end",
  60000: "infrastructure",
  60001: "resolved by hand",
};

/** Describes the verdict on a work item: `forged (final): computation other model`. */
export function verdictWords(item) {
  if (item.outcome === null) return item.status === "expired" ? "expired: no validator judged it in time" : "no verdict yet";
  const words = `${OUTCOMES[item.outcome] ?? `outcome ${item.outcome}`} (${item.status})`;
  return item.outcome === 1 ? words : `${words}: ${REASONS[item.reason] ?? `reason ${item.reason}`}`;
}

export function verdictTone(item) {
  if (item.outcome === null) return "soft";
  return { 1: "good", 2: "warn", 3: "bad" }[item.outcome] ?? "soft";
}
