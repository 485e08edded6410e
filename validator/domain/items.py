"""Pieces of the validator's work as they wait in Redis: a submission, and what is to be done about it."""

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
    """Another validator has, and may be wrong."""
    PAID_LOOK = "paid-look"
    """A paid second look: the validator confirms the verdict on the ledger if it agrees."""
    DISPUTE = "dispute"
    """The verdict is disputed, and this validator's verdict would decide."""


LOOKS = frozenset({ItemKind.SECOND_LOOK, ItemKind.PAID_LOOK})
"""Kinds of work that another validator has judged."""


def item_id(key: Digest, kind: ItemKind) -> ItemId:
    """The name of a piece of work in the queue."""
    return ItemId(f"{key}.{kind}")


def read_item_id(text: str) -> ItemId:
    """Reads a name; a bare work key is that of a first verdict.

    Raises:
        InvalidInput: It is none.
    """
    key, _, kind = text.partition(".")
    try:
        return item_id(digest(key), ItemKind(kind or ItemKind.FIRST))
    except ValueError as error:
        raise InvalidInput(f"{text[:100]!r} names no item", hint="a work key, or WORKKEY.KIND") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A verdict whose evidence is in the object store, and which the ledger may not have yet.

    Args:
        validator: Who found so, and alone can say it: the evidence lies under this name.
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
        words: Reason; the contributor reads it.
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
    """A piece of work that was taken out of the queue under a lease.

    Args:
        work: What was submitted.
        kind: Why it is examined.
        deadline_s: Unix time of the chain by which a verdict should be there; never later than the real one.
        seen_ms: When it was put into the queue, by Redis' time.
        attempts: How often anybody failed at it.
        tries: How often this validator had it before.
        spent: Whether this validator has given it up, or two have failed at it so often, or so many holders in a row
            died over it, that it is up to a person.
        trouble: What it was given up for: code, why, and hint.
        lost: How many holders in a row died over it, or lost it, without a word.
        token: Of the lease; what an earlier holder writes is refused.
        waited: From when it was put into the queue until it was taken, by Redis' time.
        taken_at: When that was, on this process's monotonic clock in seconds.
        staged: Its verdict, if an earlier holder came so far.
        resolution: What a person decided.
        absent: Whether its file was once looked for and not in the store.
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
        """Its name in the queue."""
        return item_id(self.work.key, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedItem:
    """Work that waits for a person."""

    item: Item
    parked_ms: int
    code: str
    why: str
    hint: str


def dump_work(work: SubmittedWork) -> str:
    """A submission as JSON."""
    return json.dumps(asdict(work))


def load_work(text: str) -> SubmittedWork:
    """A submission from JSON of our own."""
    return SubmittedWork(**json.loads(text))


def load_item(fields: Mapping[str, str]) -> Item:
    """An item from its hash in Redis, as nobody in particular sees it."""
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
