"""The queue of what is to be judged: earliest deadline first, leased to one worker at a time, parked for a person."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis

from protocol.runtime.clock import Clock
from protocol.runtime.redis import RedisKeys, store_errors
from validator.domain.items import (
    Item,
    ItemId,
    ItemKind,
    ParkedItem,
    Resolution,
    Staged,
    dump_work,
    failed_by,
    item_id,
    load_item,
)
from validator.domain.submissions import SubmittedWork
from validator.queue.retry_policy import RetryPolicy, Step
from validator.store.members import MEMBER_FOR, MemberId
from validator.store.scripts import script

TOGETHER = 500
"""Pieces of work per round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """Work that is put into the queue.

    Args:
        work: What was submitted.
        kind: Why it is to be examined.
        deadline_s: Unix time by which a verdict should be there, or earlier: what comes first is examined first.
        delay: How long others have before it is our turn.
    """

    work: SubmittedWork
    kind: ItemKind
    deadline_s: int
    delay: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLengths:
    """Lengths of the queue."""

    waiting: int
    """Its turn, or its next try, is still to come."""
    ready: int
    in_hand: int
    parked: int


class Put(StrEnum):
    """Destination of work that its holder could not judge."""

    AGAIN = "again"
    """Back, for others or for a later try."""
    PARKED = "parked"
    """To a person."""
    LOST = "lost"
    """Nowhere: somebody else has it."""


class WorkQueue:
    """The queue that all validators on this Redis share. Its times are Redis' own: no host's clock counts.

    Args:
        redis: Where it lies.
        keys: Its names.
        clock: Measures how long this process has had something.
        lease: How long work is one worker's without a sign of it.
        member: Who takes here.
        patience: How long work is tried.
    """

    def __init__(
        self, redis: Redis, *, keys: RedisKeys, clock: Clock, lease: timedelta, member: MemberId, patience: RetryPolicy
    ) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._prefix = keys.prefix
        self._clock = clock
        self.lease = lease
        self._member = member
        self._patience = patience
        self._scripts = {
            name: redis.register_script(script(name))
            for name in ("put", "take", "keep", "stage", "settle", "fail", "drop", "unpark")
        }

    async def put(self, new: Sequence[NewItem]) -> int:
        """Puts work in that is not there yet, in whatever state; returns how much that was."""
        put = 0
        for start in range(0, len(new), TOGETHER):
            with store_errors():
                async with self._redis.pipeline(transaction=False) as line:
                    for each in new[start : start + TOGETHER]:
                        name = item_id(each.work.key, each.kind)
                        values = (name, dump_work(each.work), each.kind.value, each.deadline_s, _ms(each.delay))
                        await self._scripts["put"](keys=[self._prefix], args=values, client=line)
                    put += sum(await line.execute())
        return put

    async def take(self, *, suspects: bool = True) -> Item | None:
        """Leases the work whose deadline comes first; None if nothing can be done now.

        Args:
            suspects: Whether work over which a holder died may be taken.
        """
        told = (_ms(self.lease), secrets.token_hex(16), self._member, int(suspects), self._patience.attempts)
        waits = (_ms(MEMBER_FOR), _ms(self._patience.first), _ms(self._patience.most))
        found = await self._run("take", *told, *waits)
        if not found:
            return None
        now, fields = int(found[1]), _fields(found[2:])
        item, most = load_item(fields), self._patience.attempts
        return replace(
            item,
            tries=int(fields.get(f"tries:{self._member}", "0")),
            spent=f"gave:{self._member}" in fields or failed_by(fields, tries=most) > 1 or item.lost >= most,
            waited=timedelta(milliseconds=max(0, now - item.seen_ms)),
            taken_at=self._clock.monotonic(),
        )

    async def keep(self, held: Mapping[ItemId, str]) -> list[ItemId]:
        """Renews leases by their tokens; returns those that are lost."""
        if not held:
            return []
        pairs = [part for pair in held.items() for part in pair]
        return [ItemId(each.decode()) for each in await self._run("keep", _ms(self.lease), *pairs)]

    async def stage(self, item: Item, staged: Staged) -> bool:
        """Writes a verdict down before it is sent; False if the lease was lost."""
        return bool(await self._run("stage", item.id, item.token, staged.dump()))

    async def done(self, item: Item) -> bool:
        """Forgets work that needs nothing more; False if the lease was lost."""
        return await self._settle(item, "done")

    async def give_back(self, item: Item) -> bool:
        """Lets somebody else have it at once: nothing was tried, or the fault was ours alone."""
        return await self._settle(item, "back")

    async def failed(self, item: Item, step: Step, *, code: str, why: str, hint: str = "") -> Put:
        """Puts it back for others and for a later try, or leaves it to a person if nobody is left to try.

        Args:
            item: Which.
            step: What this validator does about it.
            code: What kind of trouble.
            why: In words.
            hint: What a person can do.
        """
        scope = "everybodys" if step.for_all else "ours"
        how = (_ms(step.pause), scope, int(step.counted), step.gives_up.value)
        told = (self._patience.attempts, _ms(MEMBER_FOR), code, why[:1000], hint[:1000])
        found = await self._run("fail", item.id, item.token, self._member, *how, *told)
        return Put(found.decode())

    async def park(self, item: Item, *, code: str, why: str, hint: str) -> bool:
        """Leaves it for a person."""
        return await self._settle(item, "park", code=code, why=why, hint=hint)

    async def drop(self, names: Iterable[ItemId]) -> int:
        """Forgets work, whoever holds it: it was judged, or it is not on the ledger any more."""
        listed, dropped = list(names), 0
        for start in range(0, len(listed), TOGETHER):
            dropped += await self._run("drop", *listed[start : start + TOGETHER])
        return dropped

    # For people

    async def lengths(self) -> QueueLengths:
        """Lengths of the queue."""
        waiting, ready, again, leased, parked = await self._many(
            [("ZCARD", self._key(name)) for name in ("waiting", "ready", "again", "leased", "parked")]
        )
        return QueueLengths(waiting=waiting, ready=ready + again, in_hand=leased, parked=parked)

    async def parked(self, *, limit: int = 1000) -> list[ParkedItem]:
        """Returns parked items, longest waiting first."""
        with store_errors():
            names = await self._redis.zrange(self._key("parked"), 0, limit - 1, withscores=True)
        hashes = await self._many([("HGETALL", self._item(name.decode())) for name, _ in names])
        found = []
        for (_, at), fields in zip(names, hashes, strict=True):
            if fields:
                texts = _texts(fields)
                found.append(
                    ParkedItem(
                        item=load_item(texts),
                        parked_ms=int(at),
                        code=texts.get("code", ""),
                        why=texts.get("why", ""),
                        hint=texts.get("hint", ""),
                    )
                )
        return found

    async def unpark(self, name: ItemId, *, resolution: Resolution | None = None) -> bool:
        """Puts parked work back, to be tried anew or to be ended as a person decided; False if it is not parked."""
        text = resolution.dump() if resolution is not None else ""
        return bool(await self._run("unpark", name, text))

    # How

    async def _settle(self, item: Item, what: str, *, code: str = "", why: str = "", hint: str = "") -> bool:
        return bool(await self._run("settle", item.id, item.token, what, code, why[:1000], hint[:1000]))

    async def _run(self, name: str, *arguments: str | int) -> Any:  # noqa: ANN401 - each script has its own answer
        with store_errors():
            return await self._scripts[name](keys=[self._prefix], args=arguments)

    async def _many(self, commands: Sequence[Sequence[str]]) -> list[Any]:
        with store_errors():
            async with self._redis.pipeline(transaction=False) as line:
                for command in commands:
                    line.execute_command(*command)
                return list(await line.execute())

    def _key(self, queue: str) -> str:
        return f"{self._prefix}queue:{queue}"

    def _item(self, name: str) -> str:
        return f"{self._prefix}item:{name}"


def _ms(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)


def _fields(flat: Sequence[bytes]) -> dict[str, str]:
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}


def _texts(fields: Mapping[bytes, bytes] | Sequence[bytes]) -> dict[str, str]:
    if isinstance(fields, Mapping):
        return {name.decode(): value.decode() for name, value in fields.items()}
    return _fields(fields)
