"""Lua scripts of the validator and their typed calls: the class `PutItem` runs `put_item.lua`, and so on.

All times are of Redis' clock. Scripts may read this clock, because Redis replicates a script's writes, and does not run
the script again on a replica. Arguments whose names end in `_ms` are in milliseconds, and those in `_s` in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from protocol.redis.script_call import ScriptCall
from validator.domain.items import ItemId

# The queue


@dataclass(frozen=True, slots=True, kw_only=True)
class PutItem(ScriptCall[bool]):
    """Adds an item to the queue; replies False if the queue already has the item with the same submission.

    The state of the item in the queue does not matter. After a reorg, the queue may have the item with another
    submission; then the new item replaces the old one.

    Args:
        id: Id of the item.
        work: The submission as JSON.
        kind: Reason for the examination.
        deadline_s: Unix time by which a verdict is due.
        delay_ms: Time until the item may be taken.
    """

    id: str
    work: str
    kind: str
    deadline_s: int
    delay_ms: int


class TakenItem(NamedTuple):
    """Reply of `TakeItem`: the leased item."""

    id: str
    """Id of the item; empty if the member can take no item now."""
    now_ms: int
    """Unix time of the lease."""
    fields: dict[str, str]
    """Fields of the item's Redis hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeItem(ScriptCall[TakenItem]):
    """Leases the item with the earliest deadline that a member may take.

    Args:
        lease_ms: Duration of the lease.
        token: Random token of the lease. So no lease from before a loss of Redis' data has the same token.
        member: Id of the calling process.
        suspects: True if items whose earlier holder died may be taken.
        tries: Number of failures after which a member gives an item up.
        silence_ms: Time after its last announcement in which a member counts as present.
        first_pause_ms: Half of the first pause for a member that died while it held an item: until the pause ends, the
            member may not take the item again. The pause doubles with each failure of the member at the item. If no
            other member can take the item, there is no pause.
        longest_pause_ms: Longest pause after a death.
    """

    lease_ms: int
    token: str
    member: str
    suspects: bool
    tries: int
    silence_ms: int
    first_pause_ms: int
    longest_pause_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewItemLeases(ScriptCall[tuple[ItemId, ...]]):
    """Renews leases; replies with the ids of the items whose leases are lost.

    Args:
        lease_ms: Duration of the leases from now.
        tokens: Token of each lease by item.
    """

    lease_ms: int
    tokens: Mapping[ItemId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageVerdict(ScriptCall[bool]):
    """Stores the verdict on a leased item before it is sent; replies False if the lease was lost.

    Args:
        id: Id of the item.
        token: Token of the lease.
        staged: The verdict as JSON.
    """

    id: str
    token: str
    staged: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleItem(ScriptCall[bool]):
    """Ends a lease; replies False if the lease was already lost.

    Args:
        id: Id of the item.
        token: Token of the lease.
        outcome: `done` deletes the item, `back` returns it to the queue without counting an attempt, `park` parks it.
        code: Error code of a parked item; empty otherwise.
        why: Text of that error.
        hint: Action for the operator.
    """

    id: str
    token: str
    outcome: str
    code: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailItem(ScriptCall[str]):
    """Puts an item that its holder could not judge back into the queue, or parks it.

    Replies `again` (back in the queue), `parked`, or `lost` (the holder had lost the lease).

    Args:
        id: Id of the item.
        token: Token of the lease.
        member: Id of the holder.
        pause_ms: Time until the holder may take the item again.
        for_all: True if the pause also applies to other members.
        counted: True if the attempt counts as a failure of the holder at the item.
        gives_up: Reason for which the holder gives the item up, a value of `GiveUpReason`; empty if the holder retries.
        tries: Number of failures after which a member gives an item up.
        silence_ms: Time after its last announcement in which a member counts as present.
        code: Code of the error.
        why: Text of the error.
        hint: Action for the operator.
    """

    id: str
    token: str
    member: str
    pause_ms: int
    for_all: bool
    counted: bool
    gives_up: str
    tries: int
    silence_ms: int
    code: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropItems(ScriptCall[int]):
    """Deletes items in any state, given by their ids; replies with the number of items that existed."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnparkItem(ScriptCall[bool]):
    """Puts a parked item back into the queue and resets its attempt counts; replies False if it is not parked.

    Args:
        id: Id of the item.
        resolution: A person's decision as JSON; None to have the work examined again.
    """

    id: str
    resolution: str | None


# Members


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce(ScriptCall[bool]):
    """Announces a member (a validator process on this Redis) and its condition.

    Args:
        member: Id of the member.
        validator: Address of the member's key.
        place: Host and state directory of the member.
        state: State of the member: `well`, `starting` or `unwell`.
        since_ms: Time since this state began.
        kept_ms: Time after its last announcement for which a member is listed.
        start_counts_ms: Time after its first start for which a starting member is treated like one that is well.
        code: Code of the error if the member is unwell, else empty.
        why: Text of the error if the member is unwell, else empty.
        hint: Action for the operator.
        tests: Number of self-tests in a row that failed with this error.
        numerics: Numerics classes that the member can verify.
    """

    member: str
    validator: str
    place: str
    state: str
    since_ms: int
    kept_ms: int
    start_counts_ms: int
    code: str
    why: str
    hint: str
    tests: int
    numerics: tuple[str, ...]


class MemberList(NamedTuple):
    """Reply of `ListMembers`."""

    now_ms: int
    """Present Unix time."""
    members: tuple[dict[str, str], ...]
    """Fields of each member, with its `id` and `heard`, the Unix time of its last announcement in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMembers(ScriptCall[MemberList]):
    """Lists all members in the order of their last announcement, silent ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveMember(ScriptCall[bool]):
    """Removes a member from the list of members when the member stops.

    Args:
        member: Id of the member.
    """

    member: str
