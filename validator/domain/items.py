"""Queue items of the validator: a submission and the reason of its examination."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import NewType, Self

from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest, address, digest
from protocol.verdicts import Outcome
from validator.domain.submissions import SubmittedWork

ItemId = NewType("ItemId", str)
"""`WORKKEY.KIND`: the same work may wait for a verdict once, and later for a second look."""


class ItemKind(StrEnum):
    """Reason for an examination."""

    FIRST = "first"
    """The work has no verdict yet."""
    SECOND_LOOK = "second-look"
    """Another validator has judged the work, and the verdict is examined again."""
    PAID_LOOK = "paid-look"
    """A paid second look: the validator confirms the verdict on the ledger if it agrees."""
    DISPUTE = "dispute"
    """The verdict is disputed, and this validator's verdict would decide."""


LOOKS = frozenset({ItemKind.SECOND_LOOK, ItemKind.PAID_LOOK})
"""Kinds of work that another validator has judged."""


def item_id(key: Digest, kind: ItemKind) -> ItemId:
    """Returns the name of an item in the queue."""
    return ItemId(f"{key}.{kind}")


def read_item_id(text: str) -> ItemId:
    """Parses a name; a bare work key names a first verdict.

    Raises:
        InvalidInput: It is not a name.
    """
    key, _, kind = text.partition(".")
    try:
        return item_id(digest(key), ItemKind(kind or ItemKind.FIRST))
    except ValueError as error:
        raise InvalidInput(f"{text[:100]!r} names no item", hint="a work key, or WORKKEY.KIND") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A verdict whose evidence is in the object store, and which may not be on the ledger yet.

    Args:
        validator: The validator that found it; only it can send the verdict, since the evidence is stored under its
            name.
        outcome: The verdict.
        reason: A `ReasonCode`.
        audit_hash: SHA-256 of the audit file.
    """

    validator: Address
    outcome: Outcome
    reason: int
    audit_hash: Digest

    def dump(self) -> str:
        """Serialises to JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """Parses JSON written by this class."""
        values = json.loads(text)
        return cls(
            validator=address(values["validator"]),
            outcome=Outcome(values["outcome"]),
            reason=values["reason"],
            audit_hash=digest(values["audit_hash"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Decision of a person about parked work.

    Args:
        outcome: Accepted, or rejected without a slash.
        words: Reason, shown to the contributor.
        by: Name of the person.
    """

    outcome: Outcome
    words: str
    by: str

    def dump(self) -> str:
        """Serialises to JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """Parses JSON written by this class."""
        values = json.loads(text)
        return cls(outcome=Outcome(values["outcome"]), words=values["words"], by=values["by"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item that this process has leased from the queue.

    Args:
        work: The submission.
        kind: Reason of the examination.
        deadline_s: Unix time of the chain by which a verdict is due; never later than the real deadline.
        seen_ms: Time when it was added to the queue, by Redis' clock.
        attempts: Number of failed attempts of all validators.
        tries: Number of earlier attempts of this validator.
        spent: True if the item needs a person: this validator gave it up, two validators failed half of their attempts
            each, or too many holders in a row died.
        trouble: Last error for which it was given up: code, text and hint.
        lost: Number of holders in a row that died or lost the lease without a report.
        token: Token of the lease; writes of earlier holders are refused.
        waited: Time in the queue before this lease, by Redis' clock.
        taken_at: Time of the lease on this process's monotonic clock, in seconds.
        staged: Verdict of an earlier holder, if it came so far.
        resolution: Decision of a person.
        absent: True if the file was not in the store at an earlier attempt.
    """

    work: SubmittedWork
    kind: ItemKind
    deadline_s: int
    seen_ms: int
    attempts: int = 0
    tries: int = 0
    spent: bool = False
    trouble: tuple[str, str, str] = ("", "", "")
    lost: int = 0
    token: str = ""
    waited: timedelta = timedelta()
    taken_at: float = 0.0
    staged: Staged | None = None
    resolution: Resolution | None = None
    absent: bool = False

    @property
    def id(self) -> ItemId:
        """Name in the queue."""
        return item_id(self.work.key, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedItem:
    """An item that waits for a person."""

    item: Item
    parked_ms: int
    code: str
    why: str
    hint: str


def dump_work(work: SubmittedWork) -> str:
    """Serialises a submission to JSON."""
    return json.dumps(asdict(work))


def load_work(text: str) -> SubmittedWork:
    """Parses JSON written by `work_to_json`."""
    return SubmittedWork(**json.loads(text))


def load_item(fields: Mapping[str, str]) -> Item:
    """Builds an item from its Redis hash, without the fields of one validator."""
    return Item(
        work=load_work(fields["work"]),
        kind=ItemKind(fields["kind"]),
        deadline_s=int(fields["deadline"]),
        seen_ms=int(fields["seen"]),
        attempts=int(fields.get("attempts", "0")),
        trouble=(fields.get("code", ""), fields.get("why", ""), fields.get("hint", "")),
        lost=int(fields.get("lost", "0")),
        token=fields.get("token", ""),
        staged=Staged.load(fields["staged"]) if fields.get("staged") else None,
        resolution=Resolution.load(fields["resolution"]) if fields.get("resolution") else None,
        absent="absent" in fields,
    )


def failed_by(fields: Mapping[str, str], *, tries: int) -> int:
    """Number of validators that used half of their attempts on an item without success."""
    return sum(name.startswith("fails:") and 2 * int(count) >= tries for name, count in fields.items())
