"""Checks 2 to 11 of a rollout file: pure functions of the file, its slot and the policy version.

check         description and function of a check
result        result types of a check
check_input   the data that checks read
evidence      one prefill for the three checks that need the policy's computation
reading       2  format
identity      3  lease, run, step, node and version agree
bounds        5  numbers within their bounds, recounted work units
termination   6  how answers end
seeds         4  prompts, targets, groups
computation   8  TOPLOC proofs against a prefill
sampling      9  replay of the seeded noise
logprobs     10  log-probabilities agree
scoring          scores and replays of rows for the two checks that need the environment
dialogue     11  every dialogue replayed
reward        7  every row scored again

The modules are listed in the order in which the checks run. The numbers are those of the checks' reason codes
(`protocol.verdicts.ReasonCode`), which begin at 100 times the number; they are on the ledger and never change. Scoring
and the replay of dialogues come last, because they may run untrusted programs for a long time, and a file gives no
evidence of honest work before its samples are replayed (check 9).

The validator performs check 1 (the submitted bytes) and the second half of check 3 (no copy of another submission),
because both need more than the file.
"""

from rollouts.checks import (
    bounds,
    computation,
    dialogue,
    identity,
    logprobs,
    reading,
    reward,
    sampling,
    seeds,
    termination,
)
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckedVersion, CheckInput, SeedParts, SlotFacts, open_version
from rollouts.checks.evidence import Draws, RowEvidence, RowSpread, compare, gather, prefill_items
from rollouts.checks.result import CheckFinding, CheckOutcome, CheckResult, Cost, Fails

FORMAT = reading.CHECK
EXACT_CHECKS: tuple[Check, ...] = (
    identity.CHECK,
    bounds.CHECK,
    termination.CHECK,
    seeds.CHECK,
)
"""Checks in order of increasing cost. None of these checks needs the policy's weights or executes untrusted code."""
PREFILL_CHECKS: tuple[Check, ...] = (computation.CHECK, sampling.CHECK, logprobs.CHECK)
"""These checks read `CheckInput.evidence`."""
SCORE_CHECK: Check = reward.CHECK
DIALOGUE_CHECK: Check = dialogue.CHECK
"""This check and `SCORE_CHECK` share one replay of each row: see `reward.compared_rows`."""


def score_checks(version: CheckedVersion) -> tuple[Check, ...]:
    """Returns the checks of a version that need the environment, in the order in which they run."""
    return (SCORE_CHECK,) if version.recipe.dialogue is None else (DIALOGUE_CHECK, SCORE_CHECK)


__all__ = [
    "DIALOGUE_CHECK",
    "EXACT_CHECKS",
    "FORMAT",
    "PREFILL_CHECKS",
    "SCORE_CHECK",
    "Check",
    "CheckFinding",
    "CheckInput",
    "CheckOutcome",
    "CheckResult",
    "CheckedVersion",
    "Cost",
    "Draws",
    "Fails",
    "RowEvidence",
    "RowSpread",
    "SeedParts",
    "SlotFacts",
    "compare",
    "gather",
    "open_version",
    "prefill_items",
    "score_checks",
]
