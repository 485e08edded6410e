"""Verdicts: what a validator says of work, and why. Numbers are on the ledger for ever: add, never renumber."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """What a verdict says, as the ledger numbers it."""

    ACCEPTED = 1
    """Paid, and trained on."""
    REJECTED = 2
    """Not paid; no stake is lost."""
    FORGED = 3
    """Not paid, stake is slashed, and the node leaves the pool."""


class ReasonCode(IntEnum):
    """Why; the hundreds are the check that said so (design of the validator, checks 1 to 10), 0 is all of them."""

    PASSED = 0

    FETCH_OTHER_BYTES = 100
    """Size or SHA-256 are not those that were submitted."""

    FORMAT_UNREADABLE = 200
    """It is not Parquet, or crashes the reader."""
    FORMAT_SCHEMA = 201
    """Another schema version, columns missing or too many, or other types."""
    FORMAT_TOO_LARGE = 202
    """More rows, tokens or bytes than may be."""
    FORMAT_NOT_FINITE = 203
    """A number is infinite or not a number."""

    IDENTITY_OTHER_WORK = 300
    """Lease, run, step, node or version in the file are not those of the submission."""
    IDENTITY_COPY = 301
    """The same outputs as another submission, throughout."""

    SEED_PROMPTS = 400
    """Prompts are not those that the seed draws."""
    SEED_TARGETS = 401
    """Target lengths are not those that the seed draws."""
    SEED_GROUPS = 402
    """Groups are incomplete, too many, or repeated."""
    SEED_KEYS = 403
    """Sampling keys do not follow from the seed."""

    BOUNDS_REWARD = 500
    """A reward is beyond what the environment can give."""
    BOUNDS_LENGTH = 501
    """An output is longer than the lease allows."""
    BOUNDS_LOG_PROBABILITY = 502
    """A log-probability is above zero or below what can be drawn."""
    BOUNDS_UNITS = 503
    """More work units claimed than are in the file."""

    TERMINATION_EARLY = 600
    """A sample ends without EOS and below the limit."""
    TERMINATION_LATE = 601
    """Tokens follow EOS."""
    TERMINATION_UNLIKELY = 602
    """EOS was less likely than the pool's floor."""

    REWARD_DIFFERS = 700
    """Scored again, a row has another reward."""

    COMPUTATION_PROOF_MALFORMED = 800
    """A proof has the wrong length, count or modulus, or is no proof at all."""
    COMPUTATION_OTHER_MODEL = 801
    """Proofs do not fit the policy's hidden states."""
    COMPUTATION_UNCONFIRMED = 802
    """Proofs do not fit, but not so far or so surely that it must be forgery."""

    SAMPLING_REPLAY = 900
    """Tokens are not those that the seeded noise draws."""
    SAMPLING_DISTRIBUTION = 901
    """Chosen tokens are less (or more) likely throughout than draws would be."""
    SAMPLING_UNCONFIRMED = 902
    """Tokens differ, but not so far or so surely that it must be forgery."""

    LOG_PROBABILITIES_DIFFER = 1000
    """Recorded log-probabilities are not the policy's."""
    LOG_PROBABILITIES_UNCONFIRMED = 1001
    """They differ, but not so far or so surely that it must be forgery."""

    INFRASTRUCTURE = 60_000
    """Something of ours failed. Never a reason to reject: work waits, or expires without blame."""
    RESOLVED_BY_HAND = 60_001
    """A person decided (`muster validator resolve`)."""

    @property
    def check(self) -> int:
        """The number of the check that said so; 0 if none did."""
        return self // 100 if self < 60_000 else 0

    @property
    def may_be_forgery(self) -> bool:
        """Whether a verdict with this reason may say forged."""
        return self.check > 0 and self.name.rsplit("_", 1)[-1] != "UNCONFIRMED"

    @property
    def words(self) -> str:
        """What it means, in one sentence for the contributor."""
        return _WORDS[self]


_WORDS = {
    ReasonCode.PASSED: "Every check passed.",
    ReasonCode.FETCH_OTHER_BYTES: "The file has another size or SHA-256 than what was submitted.",
    ReasonCode.FORMAT_UNREADABLE: "The file is not Parquet, or crashes its reader.",
    ReasonCode.FORMAT_SCHEMA: "The file has other columns or types than its schema version.",
    ReasonCode.FORMAT_TOO_LARGE: "The file has more rows, tokens or bytes than it may.",
    ReasonCode.FORMAT_NOT_FINITE: "A number in the file is infinite or none.",
    ReasonCode.IDENTITY_OTHER_WORK: "The file names another lease, run, step, node or version.",
    ReasonCode.IDENTITY_COPY: "The outputs are those of another submission.",
    ReasonCode.SEED_PROMPTS: "The prompts are not those that the slot's seed draws.",
    ReasonCode.SEED_TARGETS: "The target lengths are not those that the slot's seed draws.",
    ReasonCode.SEED_GROUPS: "Groups are incomplete, too many, or repeated.",
    ReasonCode.SEED_KEYS: "The sampling keys do not follow from the slot's seed.",
    ReasonCode.BOUNDS_REWARD: "A reward is beyond what the environment can give.",
    ReasonCode.BOUNDS_LENGTH: "An output is longer than the lease allows.",
    ReasonCode.BOUNDS_LOG_PROBABILITY: "A log-probability can't be one.",
    ReasonCode.BOUNDS_UNITS: "More work units were claimed than are in the file.",
    ReasonCode.TERMINATION_EARLY: "A sample ends without EOS, and below the limit.",
    ReasonCode.TERMINATION_LATE: "Tokens follow EOS.",
    ReasonCode.TERMINATION_UNLIKELY: "EOS was less likely than the pool's floor.",
    ReasonCode.REWARD_DIFFERS: "Scored again, a row has another reward.",
    ReasonCode.COMPUTATION_PROOF_MALFORMED: "A proof is none: its length, count or modulus is wrong.",
    ReasonCode.COMPUTATION_OTHER_MODEL: "The proofs do not fit the policy's hidden states.",
    ReasonCode.COMPUTATION_UNCONFIRMED: "The proofs fit badly, though not so surely that it must be forgery.",
    ReasonCode.SAMPLING_REPLAY: "Tokens are not those that the seeded noise draws.",
    ReasonCode.SAMPLING_DISTRIBUTION: "The tokens are likelier or less likely throughout than draws would be.",
    ReasonCode.SAMPLING_UNCONFIRMED: "Tokens differ from the draw, though not so surely that it must be forgery.",
    ReasonCode.LOG_PROBABILITIES_DIFFER: "The recorded log-probabilities are not the policy's.",
    ReasonCode.LOG_PROBABILITIES_UNCONFIRMED: "Log-probabilities differ, though not so surely that it must be forgery.",
    ReasonCode.INFRASTRUCTURE: "Something of the validator's failed.",
    ReasonCode.RESOLVED_BY_HAND: "A person decided.",
}
