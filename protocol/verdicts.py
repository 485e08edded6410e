"""Verdicts of validators on work: outcome and reason.

The ledger stores these numbers permanently: add new ones, never change one.
"""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """Outcome of a verdict, with the ledger's numbers."""

    ACCEPTED = 1
    """Paid, and trained on."""
    REJECTED = 2
    """Not paid; no stake is lost."""
    FORGED = 3
    """Not paid, stake is slashed, and the node leaves the pool."""


class ReasonCode(IntEnum):
    """Reason of a verdict; the hundreds are the number of the check (1 to 10), and 0 stands for all checks."""

    PASSED = 0
    PASSED_UNDECIDED = 1
    """Accepted, but many rows took too long to score: they have no reward. Repeated cases lower the node's delivery
    rate."""

    FETCH_OTHER_BYTES = 100
    """Size or SHA-256 differ from the submitted ones."""

    FORMAT_UNREADABLE = 200
    """The file is not Parquet, or crashes the reader."""
    FORMAT_SCHEMA = 201
    """The schema version is another, columns are missing or unexpected, or types differ."""
    FORMAT_TOO_LARGE = 202
    """The file has more rows, tokens or bytes than allowed."""
    FORMAT_NOT_FINITE = 203
    """A number is infinite or not a number."""
    FORMAT_OLD = 204
    """The file has a former schema version, whose seeds this pool does not use."""

    IDENTITY_OTHER_WORK = 300
    """Lease, run, step, node or version in the file are not those of the submission."""
    IDENTITY_COPY = 301
    """All outputs equal those of another submission."""

    SEED_PROMPTS = 400
    """Prompts are not those that the seed draws."""
    SEED_TARGETS = 401
    """Target lengths are not those that the seed draws."""
    SEED_GROUPS = 402
    """Groups are incomplete, too many, or repeated."""
    SEED_KEYS = 403
    """Sampling keys do not follow from the seed."""

    BOUNDS_REWARD = 500
    """A reward is outside the environment's range."""
    BOUNDS_LENGTH = 501
    """An output is longer than the lease allows."""
    BOUNDS_LOG_PROBABILITY = 502
    """A log-probability is above zero, or lower than that of any token that can be sampled."""
    BOUNDS_UNITS = 503
    """The node claimed more work units than are in the file."""
    BOUNDS_ARITHMETIC = 504
    """The version's recipe does not accept the engine or number type of the generation."""
    BOUNDS_ENVIRONMENT = 505
    """The version's recipe does not accept the build of the environment that scored the file."""

    TERMINATION_EARLY = 600
    """A sample ends without EOS and below the limit."""
    TERMINATION_LATE = 601
    """Tokens follow EOS."""
    TERMINATION_UNLIKELY = 602
    """EOS was less likely than the pool's floor."""

    REWARD_DIFFERS = 700
    """The validator computes another reward for a row."""

    COMPUTATION_PROOF_MALFORMED = 800
    """A proof has the wrong length, count or modulus, or is malformed otherwise."""
    COMPUTATION_OTHER_MODEL = 801
    """Proofs do not fit the policy's hidden states."""
    COMPUTATION_UNCONFIRMED = 802
    """Proofs differ, but not by enough, or not with enough certainty, to prove forgery."""

    SAMPLING_REPLAY = 900
    """Tokens are not those that the seeded noise draws."""
    SAMPLING_DISTRIBUTION = 901
    """Sampled tokens are consistently less (or more) likely than honest sampling gives."""
    SAMPLING_UNCONFIRMED = 902
    """Tokens differ, but not by enough, or not with enough certainty, to prove forgery."""
    SAMPLING_BUDGET = 903
    """Over the node's newest files together, near-ties were decided in the node's favour more often than in honest
    work."""

    LOG_PROBABILITIES_DIFFER = 1000
    """Recorded log-probabilities are not the policy's."""
    LOG_PROBABILITIES_UNCONFIRMED = 1001
    """Log-probabilities differ, but not by enough, or not with enough certainty, to prove forgery."""

    INFRASTRUCTURE = 60_000
    """Infrastructure failed. Never a reason to reject: the work waits, or expires without a penalty."""
    RESOLVED_BY_HAND = 60_001
    """A person decided (`muster validator resolve`)."""

    @property
    def check(self) -> int:
        """Returns the number of the check that gives this reason; 0 if none does."""
        return self // 100 if self < 60_000 else 0

    @property
    def may_be_forgery(self) -> bool:
        """Returns whether a verdict with this reason may be "forged"."""
        return self.check > 0 and self not in _NEVER_FORGERY

    @property
    def words(self) -> str:
        """Returns the meaning of the reason in one sentence, for the contributor."""
        return _WORDS[self]


def reason_name(code: int) -> str:
    """Returns a reason's name, as in `format-schema`; its number if this release does not know it."""
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
    ReasonCode.FETCH_OTHER_BYTES: "The file has another size or SHA-256 than what was submitted.",
    ReasonCode.FORMAT_UNREADABLE: "The file is not Parquet, or crashes its reader.",
    ReasonCode.FORMAT_SCHEMA: "The file has other columns or types than its schema version.",
    ReasonCode.FORMAT_TOO_LARGE: "The file has more rows, tokens or bytes than allowed.",
    ReasonCode.FORMAT_NOT_FINITE: "A number in the file is infinite or not a number.",
    ReasonCode.FORMAT_OLD: "The file is of a former schema version: upgrade the task's image.",
    ReasonCode.IDENTITY_OTHER_WORK: "The file names another lease, run, step, node or version.",
    ReasonCode.IDENTITY_COPY: "The outputs are those of another submission.",
    ReasonCode.SEED_PROMPTS: "The prompts are not those that the slot's seed draws.",
    ReasonCode.SEED_TARGETS: "The target lengths are not those that the slot's seed draws.",
    ReasonCode.SEED_GROUPS: "Groups are incomplete, too many, or repeated.",
    ReasonCode.SEED_KEYS: "The sampling keys do not follow from the slot's seed.",
    ReasonCode.BOUNDS_REWARD: "A reward is outside the environment's range.",
    ReasonCode.BOUNDS_LENGTH: "An output is longer than the lease allows.",
    ReasonCode.BOUNDS_LOG_PROBABILITY: "A log-probability is outside the possible range.",
    ReasonCode.BOUNDS_UNITS: "More work units were claimed than are in the file.",
    ReasonCode.BOUNDS_ARITHMETIC: "The recipe does not accept the engine or number type that generated the file.",
    ReasonCode.BOUNDS_ENVIRONMENT: "The recipe does not accept the build of the environment that scored the file.",
    ReasonCode.TERMINATION_EARLY: "A sample ends without EOS, and below the limit.",
    ReasonCode.TERMINATION_LATE: "Tokens follow EOS.",
    ReasonCode.TERMINATION_UNLIKELY: "EOS was less likely than the pool's floor.",
    ReasonCode.REWARD_DIFFERS: "The validator computes another reward for a row.",
    ReasonCode.COMPUTATION_PROOF_MALFORMED: "A proof is malformed: its length, count or modulus is wrong.",
    ReasonCode.COMPUTATION_OTHER_MODEL: "The proofs do not fit the policy's hidden states.",
    ReasonCode.COMPUTATION_UNCONFIRMED: "The proofs differ, but not with enough certainty to prove forgery.",
    ReasonCode.SAMPLING_REPLAY: "Tokens are not those that the seeded noise draws.",
    ReasonCode.SAMPLING_DISTRIBUTION: "The tokens are consistently more or less likely than honest sampling gives.",
    ReasonCode.SAMPLING_UNCONFIRMED: "Tokens differ from the draw, but not with enough certainty to prove forgery.",
    ReasonCode.SAMPLING_BUDGET: (
        "Over the node's newest files, near-ties were decided in its favour more often than in honest work."
    ),
    ReasonCode.LOG_PROBABILITIES_DIFFER: "The recorded log-probabilities are not the policy's.",
    ReasonCode.LOG_PROBABILITIES_UNCONFIRMED: (
        "Log-probabilities differ, but not with enough certainty to prove forgery."
    ),
    ReasonCode.INFRASTRUCTURE: "The validator's infrastructure failed.",
    ReasonCode.RESOLVED_BY_HAND: "A person decided.",
}
