"""The checks of a file of rollouts, 2 to 10 of the validator's list: pure functions of file, slot and version.

result        what a check says
case          what checks look at
evidence      one prefill for the three checks that need the policy itself
reading       2  format
identity      3  lease, run, step, node and version agree
seeds         4  prompts, targets, groups
bounds        5  numbers within their bounds, work units counted again
termination   6  how answers end
computation   8  TOPLOC over prefill
sampling      9  replay of the noise
logprobs     10  log-probabilities agree
reward        7  every row scored again

They are made in this order. Scoring comes last, because it may run strangers' programs for long, and nothing is known
of who made the file before its draws were replayed.

Check 1 (the bytes that were submitted) and the second half of 3 (no copy of another submission) need more than the
file, and are the validator's.
"""

from rollouts.checks import bounds, computation, identity, logprobs, reading, reward, sampling, seeds, termination
from rollouts.checks.check_input import CheckedVersion, CheckInput, SeedParts, SlotFacts, open_version
from rollouts.checks.evidence import RowEvidence, RowSpread, gather
from rollouts.checks.result import Check, CheckFinding, CheckOutcome, CheckResult, Cost, Fails

FORMAT = reading.CHECK
EXACT_CHECKS: tuple[Check, ...] = (
    identity.CHECK,
    bounds.CHECK,
    termination.CHECK,
    seeds.CHECK,
)
"""In the order of their cost; none needs the policy's weights, and none runs anything."""
PREFILL_CHECKS: tuple[Check, ...] = (computation.CHECK, sampling.CHECK, logprobs.CHECK)
"""They judge `CheckInput.evidence`."""
SCORE_CHECK: Check = reward.CHECK

__all__ = [
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
    "Fails",
    "RowEvidence",
    "RowSpread",
    "SeedParts",
    "SlotFacts",
    "gather",
    "open_version",
]
