"""Work queue in Redis, ordered by deadline. The queue leases an item to one process at a time, or parks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis

from protocol.redis.connection import RedisKeys, store_errors
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import Clock
from protocol.runtime.randomness import token_hex
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
from validator.store.scripts import (
    DropItems,
    FailItem,
    PutItem,
    RenewItemLeases,
    SettleItem,
    StageVerdict,
    TakeItem,
    UnparkItem,
)

TOGETHER = 500
"""Maximum number of items per round trip to Redis."""
AGED = 64
"""Maximum number of items of a state whose age is read at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """An item to add to the queue.

    Args:
        work: The submission.
        kind: Reason for the examination.
        deadline_s: Unix time in seconds, at or before the deadline of the verdict. Processes take items in the order of
            this time.
        delay: Time before a process may take the item, in which validators that use another Redis may judge the work.
    """

    work: SubmittedWork
    kind: ItemKind
    deadline_s: int
    delay: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLengths:
    """Number of items in the queue by state."""

    waiting: int
    """Number of items whose delay or pause has not passed."""
    ready: int
    """Number of items that a process may take now."""
    in_hand: int
    """Number of leased items."""
    parked: int
    """Number of items that wait for a person."""


class PutOutcome(StrEnum):
    """State of an item after its holder could not judge it."""

    AGAIN = "again"
    """The item is back in the queue, for other processes or a later attempt."""
    PARKED = "parked"
    """The item is parked for a person."""
    LOST = "lost"
    """The item is unchanged, because this process had already lost the lease."""


class WorkQueue:
    """The work queue of all validator processes on one Redis.

    All times in the queue are times of Redis' clock.

    Args:
        redis: Redis client.
        keys: Redis keys of the pool's validators.
        clock: Clock of this process, for the time when it leased an item.
        lease: Time after which a lease expires if it is not renewed.
        member: Id of this process.
        retry_policy: Limits of retries.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        keys: RedisKeys,
        clock: Clock,
        lease: timedelta,
        member: MemberId,
        retry_policy: RetryPolicy,
    ) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._prefix = keys.prefix
        self._clock = clock
        self.lease = lease
        self._member = member
        self._retry_policy = retry_policy
        self._scripts = ScriptRunner(redis, keys=keys)

    async def put(self, new: Sequence[NewItem]) -> int:
        """Adds items, except those that the queue already has in any state; returns the number of added items.

        After a reorg, the ledger may have another submission under the same work key. Such a submission replaces the
        item that the queue has.
        """
        put = 0
        for start in range(0, len(new), TOGETHER):
            calls = [
                PutItem(
                    id=item_id(each.work.key, each.kind),
                    work=dump_work(each.work),
                    kind=each.kind.value,
                    deadline_s=each.deadline_s,
                    delay_ms=_ms(each.delay),
                )
                for each in new[start : start + TOGETHER]
            ]
            put += sum(await self._scripts.run_many(calls))
        return put

    async def take(self, *, suspects: bool = True) -> Item | None:
        """Leases the item with the earliest deadline that this process may take; None if there is none now.

        Args:
            suspects: True if items whose earlier holder died may be taken.
        """
        taken = await self._scripts.run(
            TakeItem(
                lease_ms=_ms(self.lease),
                token=token_hex(16),
                member=self._member,
                suspects=suspects,
                tries=self._retry_policy.attempts,
                silence_ms=_ms(MEMBER_FOR),
                first_pause_ms=_ms(self._retry_policy.first),
                longest_pause_ms=_ms(self._retry_policy.most),
            )
        )
        if not taken.id:
            return None
        fields, most = taken.fields, self._retry_policy.attempts
        item = load_item(fields)
        return replace(
            item,
            tries=int(fields.get(f"tries:{self._member}", "0")),
            spent=f"gave:{self._member}" in fields or failed_by(fields, tries=most) > 1 or item.lost >= most,
            waited=timedelta(milliseconds=max(0, taken.now_ms - item.seen_ms)),
            taken_at=self._clock.monotonic(),
        )

    async def keep(self, held: Mapping[ItemId, str]) -> list[ItemId]:
        """Renews leases; returns the ids of the items whose leases are lost.

        Args:
            held: Token of each lease, by item.
        """
        if not held:
            return []
        lost = await self._scripts.run(RenewItemLeases(lease_ms=_ms(self.lease), tokens=held))
        return list(lost)

    async def stage(self, item: Item, staged: Staged) -> bool:
        """Stores the verdict on a leased item before it is sent; returns False if the lease was lost."""
        return await self._scripts.run(StageVerdict(id=item.id, token=item.token, staged=staged.dump()))

    async def done(self, item: Item) -> bool:
        """Deletes a finished item; returns False if the lease was lost."""
        return await self._settle(item, "done")

    async def give_back(self, item: Item) -> bool:
        """Ends a lease without counting an attempt, so that another process can take the item immediately.

        Returns:
            False if the lease was already lost.
        """
        return await self._settle(item, "back")

    async def failed(self, item: Item, step: Step, *, code: str, why: str, hint: str = "") -> PutOutcome:
        """Ends the lease of an item that this process could not judge: puts the item back, or parks it.

        The queue parks the item in three cases: no live process is left that may judge the item and has not given it
        up; two processes have each failed at the item in half of their attempts; or too many processes in a row died
        while they held the item.

        Args:
            item: The leased item.
            step: Next step by the retry policy.
            code: Code of the error.
            why: Text of the error; stored up to 1000 characters.
            hint: Suggested action for the operator; stored up to 1000 characters.

        Returns:
            The item's new state.
        """
        outcome = await self._scripts.run(
            FailItem(
                id=item.id,
                token=item.token,
                member=self._member,
                pause_ms=_ms(step.pause),
                for_all=step.for_all,
                counted=step.counted,
                gives_up=step.gives_up.value,
                tries=self._retry_policy.attempts,
                silence_ms=_ms(MEMBER_FOR),
                code=code,
                why=why[:1000],
                hint=hint[:1000],
            )
        )
        return PutOutcome(outcome)

    async def park(self, item: Item, *, code: str, why: str, hint: str) -> bool:
        """Parks a leased item for a person; returns False if the lease was lost.

        Args:
            item: The leased item.
            code: Error code.
            why: Text of the error; stored up to 1000 characters.
            hint: Action for the operator; stored up to 1000 characters.
        """
        return await self._settle(item, "park", code=code, why=why, hint=hint)

    async def drop(self, names: Iterable[ItemId]) -> int:
        """Deletes items in any state, because they were judged or are no longer on the ledger.

        Returns:
            The number of items that existed.
        """
        listed, dropped = list(names), 0
        for start in range(0, len(listed), TOGETHER):
            dropped += await self._scripts.run(DropItems(ids=tuple(listed[start : start + TOGETHER])))
        return dropped

    # For the operator

    async def lengths(self) -> QueueLengths:
        """Returns the number of items by state."""
        waiting, ready, again, leased, parked = await self._many(
            [("ZCARD", self._key(name)) for name in ("waiting", "ready", "again", "leased", "parked")]
        )
        return QueueLengths(waiting=waiting, ready=ready + again, in_hand=leased, parked=parked)

    async def ages(self) -> Mapping[str, timedelta]:
        """Returns the time since the oldest item was added, by state `ready` and `parked`; zero if there is none.

        It looks at the `AGED` items of each list that processes take first, or that were parked first. Items whose
        delay has passed count as ready.
        """
        ((seconds, microseconds),) = await self._many([("TIME",)])
        now_ms, last = int(seconds) * 1000 + int(microseconds) // 1000, str(AGED - 1)
        waited = ("ZRANGEBYSCORE", self._key("waiting"), "-inf", str(now_ms), "LIMIT", "0", str(AGED))
        due, ready, again, parked = await self._many(
            [waited, *(("ZRANGE", self._key(name), "0", last) for name in ("ready", "again", "parked"))]
        )
        found = {}
        for state, names in (("ready", [*due, *ready, *again]), ("parked", parked)):
            seen = await self._many([("HGET", self._item(name.decode()), "seen") for name in names])
            oldest_ms = min((int(each) for each in seen if each is not None), default=now_ms)
            found[state] = timedelta(milliseconds=max(0, now_ms - oldest_ms))
        return found

    async def parked(self, *, limit: int = 1000) -> list[ParkedItem]:
        """Returns at most `limit` parked items, the longest parked first."""
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
        """Puts a parked item back into the queue and resets its attempt counts; returns False if it is not parked.

        Args:
            name: Id of the item.
            resolution: Decision of a person, which becomes the verdict; None to have the work examined again.
        """
        text = None if resolution is None else resolution.dump()
        return await self._scripts.run(UnparkItem(id=name, resolution=text))

    async def _settle(self, item: Item, outcome: str, *, code: str = "", why: str = "", hint: str = "") -> bool:
        return await self._scripts.run(
            SettleItem(id=item.id, token=item.token, outcome=outcome, code=code, why=why[:1000], hint=hint[:1000])
        )

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
