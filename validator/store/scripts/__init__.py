"""Lua scripts of the validator and their typed calls: the class `PutItem` runs `put_item.lua`.

Times are Redis' own, which scripts may read because Redis replicates their writes and not the scripts. Arguments that
end in `_ms` or `_s` are durations or Unix times in milliseconds or seconds.
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
    """Puts work into the queue; False if the work is already queued.

    Args:
        id: Id of the item.
        work: The submission as JSON.
        kind: Reason of the examination.
        deadline_s: Time by which a verdict is due.
        delay_ms: Time until the item may be taken.
    """

    id: str
    work: str
    kind: str
    deadline_s: int
    delay_ms: int


class TakenItem(NamedTuple):
    """A leased item."""

    id: str
    """Empty if there is no item to take."""
    now_ms: int
    fields: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeItem(ScriptCall[TakenItem]):
    """Leases the item with the next deadline.

    Args:
        lease_ms: Length of the lease.
        token: Random, so that it differs from all tokens before a loss of Redis.
        member: The caller.
        suspects: Whether items may be taken whose holder died.
        tries: Failures after which a member gives an item up.
        silence_ms: Time after its last sign of life in which a member counts as present.
        first_pause_ms: Pause of a dead holder after its first failure at the item.
        longest_pause_ms: Longest such pause.
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
    """Renews leases, given as tokens by item; replies with the items whose leases are lost."""

    lease_ms: int
    tokens: Mapping[ItemId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageVerdict(ScriptCall[bool]):
    """Stores a verdict as JSON before it is sent; False if the lease was lost."""

    id: str
    token: str
    staged: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleItem(ScriptCall[bool]):
    """Ends a lease; False if the lease was already lost.

    Args:
        id: Id of the item.
        token: Token of the lease.
        outcome: `done` deletes the item, `back` returns it untried, `park` leaves it for the operator.
        code: Reason for parking.
        why: Reason as text.
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
    """Puts back or parks an item that its holder could not judge; replies `again`, `parked` or `lost`.

    Args:
        id: Id of the item.
        token: Token of the lease.
        member: The holder.
        pause_ms: Time until the holder may take the item again.
        for_all: Whether the pause also applies to other members.
        counted: Whether the failure counts as a try.
        gives_up: Reason why the holder gives the item up: `lacks`, `barred`, `ends` or empty.
        tries: Failures after which a member gives an item up.
        silence_ms: Time after its last sign of life in which a member counts as present.
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
    """Deletes items in any state; replies with the number of those that existed."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnparkItem(ScriptCall[bool]):
    """Puts a parked item back; False if it is not parked.

    Args:
        id: Id of the item.
        resolution: A person's decision as JSON; None to try it anew.
    """

    id: str
    resolution: str | None


# Members


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce(ScriptCall[bool]):
    """Announces a member and its condition.

    Args:
        member: Its id.
        validator: Address of its key.
        place: Host and directory.
        state: `well`, `starting` or `unwell`.
        since_ms: Age of this state.
        kept_ms: Time for which a silent member is listed.
        start_counts_ms: Time for which a starting member counts as well.
        code: Code of its error.
        why: Text of the error.
        hint: Action for the operator.
        tests: Self-tests failed in this condition.
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


class MemberList(NamedTuple):
    """Members of a Redis."""

    now_ms: int
    members: tuple[dict[str, str], ...]
    """Fields of each, with its `id` and the time when it was last `heard`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMembers(ScriptCall[MemberList]):
    """Lists members, silent ones too; ordered by last activity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(ScriptCall[bool]):
    """Removes a member."""

    member: str
