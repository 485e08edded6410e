"""Queue items of the validator: a submission, and the reason for its examination."""

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
"""Id of a queue item, `WORKKEY.KIND`: the same work may be queued for a first verdict and later for a second look."""


class ItemKind(StrEnum):
    """Reason for an examination."""

    FIRST = "first"
    """First verdict: no validator has judged the work yet."""
    SECOND_LOOK = "second-look"
    """Second look: another validator has judged the work, and this validator examines it again.

    This validator's secret drew the verdict, or the node's later work failed.
    """
    PAID_LOOK = "paid-look"
    """Paid second look: the pool's terms pay for it, and a validator that agrees confirms the verdict on the ledger."""
    DISPUTE = "dispute"
    """Dispute: the first verdict is disputed, and this validator may give a deciding verdict."""


LOOKS = frozenset({ItemKind.SECOND_LOOK, ItemKind.PAID_LOOK})
"""Kinds of items that are second looks: examinations of other validators' provisional verdicts."""


def item_id(key: Digest, kind: ItemKind) -> ItemId:
    """Returns the id of the queue item for a work key and a kind."""
    return ItemId(f"{key}.{kind}")


def read_item_id(text: str) -> ItemId:
    """Parses an item's id; a work key without a kind means the first verdict.

    Raises:
        InvalidInput: The text is not an item's id.
    """
    key, _, kind = text.partition(".")
    try:
        return item_id(digest(key), ItemKind(kind or ItemKind.FIRST))
    except ValueError as error:
        raise InvalidInput(
            f"{text[:100]!r} is not the id of an item", hint="give a work key, or WORKKEY.KIND"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A verdict that is ready to be sent: its audit file is in the object store.

    Args:
        validator: Address of the validator that reached the verdict. Only this validator can send the verdict, because
            the audit file is stored under this validator's address.
        outcome: Outcome of the verdict.
        reason: Reason code of the verdict (`ReasonCode`).
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
        """Parses the JSON that `dump` returns."""
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
        outcome: `ACCEPTED`, or `REJECTED`, which costs the node no stake.
        words: Reason of the decision, which the contributor can read.
        by: Name of the access token or key with which the person decided.
    """

    outcome: Outcome
    words: str
    by: str

    def dump(self) -> str:
        """Serialises to JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """Parses the JSON that `dump` returns."""
        values = json.loads(text)
        return cls(outcome=Outcome(values["outcome"]), words=values["words"], by=values["by"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A queue item that this process has leased.

    Args:
        work: The submission.
        kind: Reason for the examination.
        deadline_s: Unix time of the chain in seconds by which a verdict is due; never later than the ledger's deadline.
        seen_ms: Time when the item was added to the queue, in Unix milliseconds of Redis' clock.
        attempts: Number of failed attempts of all validators.
        tries: Number of earlier attempts of this validator process.
        spent: True if this process must not examine the item: this process gave the item up, two processes have each
            failed in half of their attempts, or too many holders in a row died.
        last_error: Last error of an attempt: code, text and hint.
        lost: Number of processes in a row whose lease of the item expired without a report, usually because they died.
        token: Token of the lease; the queue refuses writes with the token of an earlier lease.
        waited: Time in the queue before this lease, by Redis' clock.
        taken_at: Time when this process leased the item, on its monotonic clock, in seconds.
        staged: Verdict that a holder of the item stored in the queue, to send it afterwards; None if there is none.
        resolution: Decision of a person about the parked item; None if there is none.
        absent: True if the file was not in the object store at an earlier attempt.
    """

    work: SubmittedWork
    kind: ItemKind
    deadline_s: int
    seen_ms: int
    attempts: int = 0
    tries: int = 0
    spent: bool = False
    last_error: tuple[str, str, str] = ("", "", "")
    lost: int = 0
    token: str = ""
    waited: timedelta = timedelta()
    taken_at: float = 0.0
    staged: Staged | None = None
    resolution: Resolution | None = None
    absent: bool = False

    @property
    def id(self) -> ItemId:
        """Id of the item in the queue."""
        return item_id(self.work.key, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedItem:
    """A parked item, which waits for a person.

    Args:
        item: The item.
        parked_ms: Time when the item was parked, in Unix milliseconds of Redis' clock.
        code: Error code of the last attempt.
        why: Text of that error.
        hint: Suggested action for the operator.
    """

    item: Item
    parked_ms: int
    code: str
    why: str
    hint: str


def dump_work(work: SubmittedWork) -> str:
    """Serialises a submission to JSON."""
    return json.dumps(asdict(work))


def load_work(text: str) -> SubmittedWork:
    """Parses JSON written by `dump_work`."""
    return SubmittedWork(**json.loads(text))


def load_item(fields: Mapping[str, str]) -> Item:
    """Builds an item from its Redis hash, without the fields that depend on the process that leased it.

    The caller sets those fields: `tries`, `spent`, `waited` and `taken_at`.
    """
    return Item(
        work=load_work(fields["work"]),
        kind=ItemKind(fields["kind"]),
        deadline_s=int(fields["deadline"]),
        seen_ms=int(fields["seen"]),
        attempts=int(fields.get("attempts", "0")),
        last_error=(fields.get("code", ""), fields.get("why", ""), fields.get("hint", "")),
        lost=int(fields.get("lost", "0")),
        token=fields.get("token", ""),
        staged=Staged.load(fields["staged"]) if fields.get("staged") else None,
        resolution=Resolution.load(fields["resolution"]) if fields.get("resolution") else None,
        absent="absent" in fields,
    )


def failed_by(fields: Mapping[str, str], *, tries: int) -> int:
    """Returns the number of processes that failed at an item in at least half of their attempts.

    Args:
        fields: Redis hash of the item.
        tries: Number of attempts that each process has.
    """
    return sum(name.startswith("fails:") and 2 * int(count) >= tries for name, count in fields.items())
