"""Validator processes that share this Redis, with their condition. Several may have the same key."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NewType

from redis.asyncio import Redis

from protocol.identifiers import Address, address
from protocol.runtime.redis import RedisKeys, store_errors
from validator.store.scripts import script

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
        why: The reason in words.
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
    """One process on this Redis.

    Args:
        id: Its own.
        validator: Its key's address.
        place: Its host and directory.
        condition: As it said last.
        since_ms: Since when it is so, by Redis' time.
        heard_ms: When it last said so, likewise.
        silent: For how long it has said nothing.
        counts: Whether work is left to it while it is here.
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
    """The members of one Redis, as one of them sees and tells it.

    Args:
        redis: Where they meet.
        keys: Its names.
        validator: Our key's address.
        place: Our host and directory.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, validator: Address, place: str) -> None:
        self._prefix = keys.prefix
        self._validator = validator
        self._place = place
        self.me = member_id(validator, place)
        self._scripts = {name: redis.register_script(script(name)) for name in ("present", "members", "leave")}

    async def say(self, condition: Condition, *, since: timedelta) -> None:
        """Announces this process and its condition.

        Args:
            condition: As it is now.
            since: For how long it has been so.

        Raises:
            StoreUnavailable: Redis can't be told.
        """
        texts = [text[:_LONGEST] for text in (condition.code, condition.why, condition.hint)]
        ages = [int(span.total_seconds() * 1000) for span in (since, REMEMBERED)]
        told = [self.me, self._validator, self._place, condition.state.value, *ages, *texts, condition.tests]
        told.append(int(START_COUNTS_FOR.total_seconds() * 1000))
        await self._run("present", *told)

    async def all(self) -> list[Member]:
        """Returns all processes, including silent ones; the most recently seen comes last.

        Raises:
            StoreUnavailable: Redis can't be asked.
        """
        now, *rows = await self._run("members")
        return [_member(int(now), row) for row in rows]

    async def here(self) -> frozenset[Address]:
        """The keys of those that are here, ours among them."""
        return frozenset(each.validator for each in await self.all() if each.is_here) | {self._validator}

    async def others_may_judge(self) -> bool:
        """Returns whether work may be left to another process."""
        return any(each.may_judge and each.id != self.me for each in await self.all())

    async def leave(self) -> None:
        """Announces the end of this process, so that others do not wait for it."""
        await self._run("leave", self.me)

    async def _run(self, name: str, *told: str | int) -> Any:  # noqa: ANN401 - each script has its own answer
        with store_errors():
            return await self._scripts[name](keys=[self._prefix], args=told)


def _member(now: int, row: list[bytes]) -> Member:
    texts = [each.decode() for each in row]
    fields: Mapping[str, str] = dict(zip(texts[2::2], texts[3::2], strict=True))
    heard = int(float(texts[1]))
    return Member(
        id=MemberId(texts[0]),
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
