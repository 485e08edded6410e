"""Validator processes that share this Redis, with their condition. Several may have the same key."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import NewType

from redis.asyncio import Redis

from protocol.identifiers import Address, address
from protocol.redis.connection import RedisKeys
from protocol.redis.script_call import ScriptRunner
from validator.store.scripts import Announce, Leave, ListMembers

MemberId = NewType("MemberId", str)
"""Twelve hexadecimal digits."""

MEMBER_FOR = timedelta(minutes=1)
"""Time after its last sign of life in which a process counts as present."""

START_COUNTS_FOR = timedelta(minutes=2)
"""Time in which a starting process counts as present, until its first passed self-test."""

REMEMBERED = timedelta(hours=1)
"""Time in which a silent process is still listed."""

_LONGEST = 500


class MemberState(StrEnum):
    """Condition of a process."""

    STARTING = "starting"
    """Its first self-test is under way; it takes nothing yet."""
    WELL = "well"
    UNWELL = "unwell"
    """It takes nothing until its self-test passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Condition of a validator, with the reason.

    Args:
        state: The condition.
        code: Code of its error.
        why: Reason as text.
        hint: Action for its operator.
        tests: Self-tests failed in this condition.
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
        validator: Address of its key.
        place: Its host and directory.
        condition: As last announced.
        since_ms: Start of this condition, by Redis' time.
        heard_ms: Last sign of life, by Redis' time.
        silent: Time since its last sign of life.
        counts: Whether work may be left to it while it is present.
    """

    id: MemberId
    validator: Address
    place: str
    condition: Condition
    since_ms: int
    heard_ms: int
    silent: timedelta
    counts: bool

    @property
    def is_here(self) -> bool:
        """Returns whether the process counts as present."""
        return self.silent < MEMBER_FOR

    @property
    def may_judge(self) -> bool:
        """Returns whether work may be left to it."""
        return self.is_here and self.counts


def place_of(directory: Path) -> str:
    """Returns the display name of a process: its host and its state directory."""
    return f"{socket.gethostname()}:{directory.absolute()}"


def member_id(validator: Address, place: str) -> MemberId:
    """Returns an id that survives restarts and differs between concurrent processes."""
    return MemberId(hashlib.sha256(f"{validator} {place}".encode()).hexdigest()[:12])


class Members:
    """The processes that share one Redis, as seen by one of them.

    Args:
        redis: The shared Redis.
        keys: Of the pool's validators.
        validator: Address of this process's key.
        place: Host and directory of this process.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, validator: Address, place: str) -> None:
        self._validator = validator
        self._place = place
        self.me = member_id(validator, place)
        self._scripts = ScriptRunner(redis, keys=keys)

    async def say(self, condition: Condition, *, since: timedelta) -> None:
        """Announces this process and its condition.

        Args:
            condition: The present condition.
            since: Its age.

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
            )
        )

    async def all(self) -> list[Member]:
        """Returns all processes, including silent ones; ordered by last activity.

        Raises:
            StoreUnavailable: Redis is down.
        """
        listed = await self._scripts.run(ListMembers())
        return [_member(listed.now_ms, fields) for fields in listed.members]

    async def here(self) -> frozenset[Address]:
        """Returns the keys of present processes, this one's among them."""
        return frozenset(each.validator for each in await self.all() if each.is_here) | {self._validator}

    async def others_may_judge(self) -> bool:
        """Returns whether work may be left to another process."""
        return any(each.may_judge and each.id != self.me for each in await self.all())

    async def leave(self) -> None:
        """Announces the end of this process, so that others do not wait for it."""
        await self._scripts.run(Leave(member=self.me))


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
    )
