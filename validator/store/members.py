"""Store of the validator processes on this Redis, each with its condition.

Several processes may use the same validator key.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import NewType

from redis.asyncio import Redis

from protocol.identifiers import Address, address
from protocol.redis.connection import RedisKeys
from protocol.redis.script_call import ScriptRunner
from validator.store.scripts import Announce, LeaveMember, ListMembers

MemberId = NewType("MemberId", str)
"""Id of a validator process on this Redis: twelve hexadecimal digits."""

MEMBER_FOR = timedelta(minutes=1)
"""Time after a process's last announcement in which the process counts as present."""

START_COUNTS_FOR = timedelta(minutes=2)
"""Time after a process's first start in which other processes leave work to it although no self-test has passed yet."""

REMEMBERED = timedelta(hours=1)
"""Time after a process's last announcement in which the process is still listed."""

_LONGEST = 500
"""Maximum length of stored texts, in characters."""


class MemberState(StrEnum):
    """State of a validator process."""

    STARTING = "starting"
    """The first self-test of the process has not ended; it takes no work yet."""
    WELL = "well"
    """The process takes work."""
    UNWELL = "unwell"
    """The process takes no work until its self-test passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Condition of a validator process, with the reason.

    Args:
        state: State of the process.
        code: Code of the error if the process is unwell, else empty.
        why: Text of the error if the process is unwell, else empty.
        hint: Action for the operator.
        tests: Number of self-tests in a row that failed with this error.
    """

    state: MemberState
    code: str = ""
    why: str = ""
    hint: str = ""
    tests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A validator process that uses this Redis.

    Args:
        id: Id of the process.
        validator: Address of the process's key.
        place: Host and state directory of the process.
        condition: Condition that the process announced last.
        since_ms: Start of this condition, in Unix milliseconds of Redis' clock.
        heard_ms: Time of the last announcement, in Unix milliseconds of Redis' clock.
        silent: Time since the last announcement.
        counts: True if other processes may leave work to this process while it is present.
        numerics: Numerics classes that the process can verify.
    """

    id: MemberId
    validator: Address
    place: str
    condition: Condition
    since_ms: int
    heard_ms: int
    silent: timedelta
    counts: bool
    numerics: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """True if the process counts as present: it announced its condition within the last minute."""
        return self.silent < MEMBER_FOR

    @property
    def may_judge(self) -> bool:
        """True if others may leave work to this process: it is present, and well or in its first two minutes."""
        return self.is_here and self.counts


def place_of(directory: Path) -> str:
    """Returns the display name of a process: its host and its state directory."""
    return f"{socket.gethostname()}:{directory.absolute()}"


def member_id(validator: Address, place: str) -> MemberId:
    """Returns the id of a process. The id stays the same after restarts, and differs between concurrent processes.

    Args:
        validator: Address of the process's key.
        place: Host and state directory; only one process can use a directory.
    """
    return MemberId(hashlib.sha256(f"{validator} {place}".encode()).hexdigest()[:12])


def no_numerics() -> tuple[str, ...]:
    """Returns an empty tuple: the numerics classes of a process that can verify no class."""
    return ()


class Members:
    """The validator processes on one Redis: announces this process and reads the others.

    Args:
        redis: Redis client.
        keys: Redis keys of the pool's validators.
        validator: Address of this process's key.
        place: Host and state directory of this process.
        numerics: Returns the numerics classes that this process can verify.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        keys: RedisKeys,
        validator: Address,
        place: str,
        numerics: Callable[[], Sequence[str]] = no_numerics,
    ) -> None:
        self._validator = validator
        self._place = place
        self._numerics = numerics
        self.me = member_id(validator, place)
        self._scripts = ScriptRunner(redis, keys=keys)

    async def announce(self, condition: Condition, *, since: timedelta) -> None:
        """Announces this process and its condition to the other processes.

        Args:
            condition: The present condition.
            since: Time since the condition began.

        Raises:
            StoreUnavailable: Redis is down.
        """
        await self._scripts.run(
            Announce(
                member=self.me,
                validator=self._validator,
                place=self._place,
                state=condition.state.value,
                since_ms=_ms(since),
                kept_ms=_ms(REMEMBERED),
                start_counts_ms=_ms(START_COUNTS_FOR),
                code=condition.code[:_LONGEST],
                why=condition.why[:_LONGEST],
                hint=condition.hint[:_LONGEST],
                tests=condition.tests,
                numerics=self.own_numerics(),
            )
        )

    async def all(self) -> list[Member]:
        """Returns all processes that announced themselves in the last hour, in the order of their announcements.

        Raises:
            StoreUnavailable: Redis is down.
        """
        listed = await self._scripts.run(ListMembers())
        return [_member(listed.now_ms, fields) for fields in listed.members]

    async def here(self) -> frozenset[Address]:
        """Returns the validator addresses of all present processes, this one included."""
        return frozenset(each.validator for each in await self.all() if each.is_here) | {self._validator}

    def own_numerics(self) -> tuple[str, ...]:
        """Returns the numerics classes that this process can verify."""
        return tuple(self._numerics())

    async def numerics(self) -> tuple[str, ...]:
        """Returns the sorted numerics classes that the present processes with this process's key can verify.

        The result combines several processes, because processes with one key may run on machines of different classes.
        """
        mine = [each.numerics for each in await self.all() if each.is_here and each.validator == self._validator]
        return tuple(sorted({name for names in [*mine, self.own_numerics()] for name in names}))

    async def others_may_judge(self) -> bool:
        """Returns True if this process may leave work to another present process; see `Member.may_judge`."""
        return any(each.may_judge and each.id != self.me for each in await self.all())

    async def leave(self) -> None:
        """Removes this process from the list when it stops, so that no other process leaves work to it."""
        await self._scripts.run(LeaveMember(member=self.me))


def _ms(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)


def _member(now: int, fields: Mapping[str, str]) -> Member:
    heard = int(float(fields["heard"]))
    return Member(
        id=MemberId(fields["id"]),
        validator=address(fields["validator"]),
        place=fields["place"],
        condition=Condition(
            state=MemberState(fields["state"]),
            code=fields["code"],
            why=fields["why"],
            hint=fields["hint"],
            tests=int(fields["tests"]),
        ),
        since_ms=int(fields["since"]),
        heard_ms=heard,
        silent=timedelta(milliseconds=max(0, now - heard)),
        counts=fields.get("counts") != "0",
        numerics=tuple(fields.get("numerics", "").split()),  # absent if the process is of an older release
    )
