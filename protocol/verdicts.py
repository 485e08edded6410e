"""Outcomes and reasons of validators' verdicts on work.

The ledger stores these numbers permanently. New numbers may be added; existing ones must never change.
"""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """Outcome of a verdict, with the ledger's numbers."""

    ACCEPTED = 1
    """The work is paid, and the trainer learns from it."""
    REJECTED = 2
    """The work is not paid; no stake is lost."""
    FORGED = 3
    """The work is not paid, stake is slashed, and the node is removed from the pool."""


class ReasonCode(IntEnum):
    """Reason of a verdict.

    A code divided by 100 is the number of the check that failed (1 to 11). Codes below 100 concern all checks.
    """

    PASSED = 0
    """Every check passed."""
    PASSED_UNDECIDED = 1
    """The work is accepted, but many rows took too long to score and have no reward. Repeated cases lower the node's
    delivery rate.
    """

    FETCH_OTHER_BYTES = 100
    """The file's size or SHA-256 differs from the submitted one."""

    FORMAT_UNREADABLE = 200
    """The file is not Parquet, or crashes the reader."""
    FORMAT_SCHEMA = 201
    """The file has an unknown schema version, missing or unexpected columns, or other types."""
    FORMAT_TOO_LARGE = 202
    """The file has more rows, tokens or bytes than allowed."""
    FORMAT_NOT_FINITE = 203
    """A number is infinite or not a number."""
    FORMAT_OLD = 204
    """The file has an old schema version, whose seeds this pool does not use."""

    IDENTITY_OTHER_WORK = 300
    """The file names another lease, run, step, node or version than the submission."""
    IDENTITY_COPY = 301
    """All outputs equal those of another submission."""

    SEED_PROMPTS = 400
    """The prompts differ from those that follow from the slot's seed."""
    SEED_TARGETS = 401
    """The target lengths differ from those that follow from the slot's seed."""
    SEED_GROUPS = 402
    """A group is incomplete or repeated, or there are too many groups."""
    SEED_KEYS = 403
    """The sampling keys differ from those that follow from the slot's seed."""

    BOUNDS_REWARD = 500
    """A reward is outside the environment's range."""
    BOUNDS_LENGTH = 501
    """An output is longer than the lease allows."""
    BOUNDS_LOG_PROBABILITY = 502
    """A log-probability is above zero, or too low for a token that can be sampled."""
    BOUNDS_UNITS = 503
    """The node claimed more work units than the file contains."""
    BOUNDS_ARITHMETIC = 504
    """The version's recipe does not accept the engine or number type of the generation."""
    BOUNDS_ENVIRONMENT = 505
    """The version's recipe does not accept the build of the environment that scored the file."""
    BOUNDS_TURNS = 506
    """A sample has more turns or longer replies than the recipe allows, or turns where the recipe has single answers,
    or none where it has dialogues.
    """

    TERMINATION_EARLY = 600
    """A sample ends without EOS before it reaches its length limit."""
    TERMINATION_LATE = 601
    """A sample has tokens after EOS."""
    TERMINATION_UNLIKELY = 602
    """A sample ends with an EOS whose probability was below the pool's minimum."""

    REWARD_DIFFERS = 700
    """The validator computed a different reward for a row."""

    COMPUTATION_PROOF_MALFORMED = 800
    """A TOPLOC proof has the wrong length, count or modulus, or is malformed otherwise."""
    COMPUTATION_OTHER_MODEL = 801
    """The proofs do not match the hidden states that the policy computes."""
    COMPUTATION_UNCONFIRMED = 802
    """The proofs differ, but not by enough, or not with enough certainty, to prove forgery."""

    SAMPLING_REPLAY = 900
    """The tokens differ from those that the seeded noise selects."""
    SAMPLING_DISTRIBUTION = 901
    """The sampled tokens are consistently less likely, or more likely, than in honest sampling."""
    SAMPLING_UNCONFIRMED = 902
    """The tokens differ from the replay, but not by enough, or not with enough certainty, to prove forgery."""
    SAMPLING_BUDGET = 903
    """Over the node's newest files together, near-ties were decided in the node's favour more often than in honest
    work.
    """

    LOG_PROBABILITIES_DIFFER = 1000
    """The recorded log-probabilities differ from those that the policy computes."""
    LOG_PROBABILITIES_UNCONFIRMED = 1001
    """The log-probabilities differ, but not by enough, or not with enough certainty, to prove forgery."""

    DIALOGUE_REPLY = 1100
    """The tokens given to the model differ from the environment's reply."""
    DIALOGUE_END = 1101
    """A dialogue ends before or after the point where the environment or a limit ends it."""

    INFRASTRUCTURE = 60_000
    """The validator's infrastructure failed. This never rejects work: the work waits, or expires without a penalty."""
    RESOLVED_BY_HAND = 60_001
    """A person decided with `muster validator resolve`."""

    @property
    def check(self) -> int:
        """Returns the number of the check that gives this reason; 0 if no single check does."""
        return self // 100 if self < 60_000 else 0

    @property
    def may_be_forgery(self) -> bool:
        """Returns whether a verdict with this reason may have the outcome `FORGED`."""
        return self.check > 0 and self not in _NEVER_FORGERY

    @property
    def words(self) -> str:
        """Returns the meaning of the reason in one sentence, for the contributor."""
        return _WORDS[self]


def reason_name(code: int) -> str:
    """Returns the name of a reason code, such as `format-schema`.

    A code that this release does not know is returned as a number.
    """
    return ReasonCode(code).name.lower().replace("_", "-") if code in set(ReasonCode) else str(code)


_NEVER_FORGERY = frozenset(
    {
        ReasonCode.FORMAT_OLD,
        ReasonCode.COMPUTATION_UNCONFIRMED,
        ReasonCode.SAMPLING_UNCONFIRMED,
        ReasonCode.SAMPLING_BUDGET,
        ReasonCode.LOG_PROBABILITIES_UNCONFIRMED,
    }
)

_WORDS = {
    ReasonCode.PASSED: "Every check passed.",
    ReasonCode.PASSED_UNDECIDED: "Every check passed, but many answers took too long to score and have no reward.",
    ReasonCode.FETCH_OTHER_BYTES: "The file has another size or SHA-256 than the submitted one.",
    ReasonCode.FORMAT_UNREADABLE: "The file is not Parquet, or crashes its reader.",
    ReasonCode.FORMAT_SCHEMA: "The file has other columns or types than its schema version.",
    ReasonCode.FORMAT_TOO_LARGE: "The file has more rows, tokens or bytes than allowed.",
    ReasonCode.FORMAT_NOT_FINITE: "A number in the file is infinite or not a number.",
    ReasonCode.FORMAT_OLD: "The file has an old schema version: upgrade the task's image.",
    ReasonCode.IDENTITY_OTHER_WORK: "The file names another lease, run, step, node or version.",
    ReasonCode.IDENTITY_COPY: "The outputs equal those of another submission.",
    ReasonCode.SEED_PROMPTS: "The prompts differ from those that follow from the slot's seed.",
    ReasonCode.SEED_TARGETS: "The target lengths differ from those that follow from the slot's seed.",
    ReasonCode.SEED_GROUPS: "A group is incomplete or repeated, or there are too many groups.",
    ReasonCode.SEED_KEYS: "The sampling keys differ from those that follow from the slot's seed.",
    ReasonCode.BOUNDS_REWARD: "A reward is outside the environment's range.",
    ReasonCode.BOUNDS_LENGTH: "An output is longer than the lease allows.",
    ReasonCode.BOUNDS_LOG_PROBABILITY: "A log-probability is outside the possible range.",
    ReasonCode.BOUNDS_UNITS: "The node claimed more work units than the file contains.",
    ReasonCode.BOUNDS_ARITHMETIC: "The recipe does not accept the engine or number type that generated the file.",
    ReasonCode.BOUNDS_ENVIRONMENT: "The recipe does not accept the build of the environment that scored the file.",
    ReasonCode.BOUNDS_TURNS: "The turns of a sample are not those of a dialogue within the recipe's limits.",
    ReasonCode.TERMINATION_EARLY: "A sample ends without EOS before it reaches its length limit.",
    ReasonCode.TERMINATION_LATE: "A sample has tokens after EOS.",
    ReasonCode.TERMINATION_UNLIKELY: "A sample ends with an EOS whose probability was below the pool's minimum.",
    ReasonCode.REWARD_DIFFERS: "The validator computed a different reward for a row.",
    ReasonCode.COMPUTATION_PROOF_MALFORMED: "A proof is malformed: its length, count or modulus is wrong.",
    ReasonCode.COMPUTATION_OTHER_MODEL: "The proofs do not match the hidden states that the policy computes.",
    ReasonCode.COMPUTATION_UNCONFIRMED: "The proofs differ, but not with enough certainty to prove forgery.",
    ReasonCode.SAMPLING_REPLAY: "The tokens differ from those that the seeded noise selects.",
    ReasonCode.SAMPLING_DISTRIBUTION: "The tokens are consistently more or less likely than in honest sampling.",
    ReasonCode.SAMPLING_UNCONFIRMED: "The tokens differ from the replay, but not certainly enough to prove forgery.",
    ReasonCode.SAMPLING_BUDGET: (
        "Over the node's newest files, near-ties were decided in its favour more often than in honest work."
    ),
    ReasonCode.LOG_PROBABILITIES_DIFFER: "The recorded log-probabilities differ from those that the policy computes.",
    ReasonCode.LOG_PROBABILITIES_UNCONFIRMED: (
        "The log-probabilities differ, but not with enough certainty to prove forgery."
    ),
    ReasonCode.DIALOGUE_REPLY: "The tokens given to the model differ from the environment's reply.",
    ReasonCode.DIALOGUE_END: "A dialogue does not end where the environment or a limit ends it.",
    ReasonCode.INFRASTRUCTURE: "The validator's infrastructure failed.",
    ReasonCode.RESOLVED_BY_HAND: "A person decided on the verdict.",
}
