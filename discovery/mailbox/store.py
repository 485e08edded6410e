"""Invites in Redis, and the notifications that wake a node's long poll on any instance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from redis.asyncio import Redis

from discovery.store.record_store import KEYS, not_registered
from discovery.store.scripts import PostInvite
from protocol.errors import Conflict, NotFound
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.redis.connection import RedisKeys, store_errors
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import Clock
from protocol.runtime.randomness import jittered
from protocol.runtime.waiting import wait_first
from protocol.wire.invites import SignedInvite
from protocol.wire.mailbox import MAX_INVITES

CHANNEL = KEYS.of("doorbell")
"""Redis channel on which the arrival of an invite is published; a message is the node's address."""


class MailboxNotifier:
    """Wakes a node's waiting poll when an invite for the node arrives at any instance.

    A notification may be lost when Redis restarts or the subscription breaks. The invite is then only delayed: every
    poll reads the mailbox when it begins, and a new subscription wakes all polls.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: dict[str, asyncio.Event] = {}

    @contextmanager
    def waiting(self, node: Address) -> Iterator[asyncio.Event]:
        """Yields an event that is set when an invite for `node` arrives.

        Entering the context wakes an older poll of the same node, so that the older poll ends.
        """
        event = asyncio.Event()
        if (older := self._waiting.get(node)) is not None:
            older.set()
        self._waiting[node] = event
        try:
            yield event
        finally:
            if self._waiting.get(node) is event:
                del self._waiting[node]

    async def listen(self) -> None:
        """Forwards notifications until it is cancelled; a background loop.

        Raises:
            StoreUnavailable: The subscription broke; the loop runner restarts this loop.
        """
        with store_errors():
            async with self._redis.pubsub() as subscription:
                await subscription.subscribe(CHANNEL)
                task = asyncio.current_task()
                # redis-py loses a cancellation that arrives while it connects; the task still counts it.
                while task is None or not task.cancelling():
                    message = await subscription.get_message(timeout=1.0)
                    if message is None:
                        continue
                    if message["type"] == "message":
                        self.notify(message["data"].decode())
                    else:  # Redis confirmed the first subscription, or one that redis-py renewed
                        self._ring_all()

    def notify(self, node: str) -> None:
        """Wakes the poll of `node` on this instance."""
        if (event := self._waiting.get(node)) is not None:
            event.set()

    def _ring_all(self) -> None:
        for event in self._waiting.values():
            event.set()


class Mailbox:
    """Stores the invites of each node until they expire or the node acknowledges them.

    Delivery is at least once, so that a node that crashes after it fetched an invite gets the invite again. The ledger
    accepts each invite only once.
    """

    def __init__(self, redis: Redis, *, notifier: MailboxNotifier, clock: Clock, keys: RedisKeys = KEYS) -> None:
        self._redis = redis
        self._notifier = notifier
        self._clock = clock
        self._keys = keys
        self._scripts = ScriptRunner(redis, keys=keys)

    async def post(self, invite: SignedInvite) -> None:
        """Stores a validated invite for its node; storing the same invite again changes nothing.

        Raises:
            NotFound: The node is not registered here.
            Conflict: The node wants to join another pool.
        """
        now = self._clock.now()
        outcome = await self._scripts.run(
            PostInvite(
                node=invite.node,
                pool=str(invite.pool_id),
                invite=invite.model_dump_json(),
                now_ms=unix_ms(now),
                now_s=int(now.timestamp()),
                expiry_s=invite.expiry,
                most_invites=MAX_INVITES,
                channel=CHANNEL,
            )
        )
        if outcome == "unknown-node":
            raise NotFound(
                f"{invite.node} is not registered here",
                hint="the node's record has expired or was removed; invite the node when it is listed again",
                code="unknown-node",
            )
        if outcome == "other-pool":
            raise Conflict(
                f"{invite.node} wants to join another pool than {invite.pool_id}",
                hint="invite only nodes in the listing of this pool",
                code="other-pool",
            )

    async def invites(self, node: Address) -> tuple[SignedInvite, ...]:
        """Returns a node's invites that have not expired, latest expiry first.

        Raises:
            NotFound: The node is not registered here, so no invite can arrive.
        """
        now = self._clock.now()
        now_s = int(now.timestamp())
        with store_errors():
            # One round trip: every poll reads the mailbox at its start, and again after a notification.
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.hget(self._keys.of("node", node), "expires")
                pipe.zrevrangebyscore(self._box(node), "+inf", f"({now_s}", 0, MAX_INVITES)
                expires, texts = await pipe.execute()
        if expires is None or int(expires) <= unix_ms(now):
            raise not_registered(node)
        return tuple(invite for text in texts if (invite := _parsed(text)) is not None)

    async def wait(
        self, node: Address, longest_wait: timedelta, *, stopping: asyncio.Event
    ) -> tuple[SignedInvite, ...]:
        """Returns a node's invites; waits up to `longest_wait` for the first one, or until the service stops.

        A poll without an invite ends at a random moment in the last fifth of `longest_wait`. Otherwise thousands of
        polls that began together would end together, and the next ones would overload Redis. For the same reason, a
        poll that was not notified ends without a second read of Redis.
        """
        with self._notifier.waiting(node) as notified:
            found = await self.invites(node)
            if found:
                return found
            time_over = self._clock.sleep(jittered(longest_wait, least=0.8))
            await wait_first(notified.wait(), stopping.wait(), time_over)
            return await self.invites(node) if notified.is_set() else ()

    async def acknowledge(self, node: Address, nonce: str) -> None:
        """Deletes an invite that the node has used or can't use; does nothing if no stored invite has this nonce."""
        with store_errors():
            texts: list[Any] = await self._redis.zrange(self._box(node), 0, -1)
            used = [text for text in texts if (invite := _parsed(text)) is not None and invite.nonce == nonce]
            if used:
                await self._redis.zrem(self._box(node), *used)

    async def clear(self, node: Address) -> None:
        """Deletes all invites of a node that has joined."""
        with store_errors():
            await self._redis.delete(self._box(node))

    def _box(self, node: Address) -> str:
        return self._keys.of("invites", node)


def _parsed(text: bytes) -> SignedInvite | None:
    try:
        return SignedInvite.model_validate_json(text)
    except ValidationError:  # another release wrote the invite; it expires by itself
        return None
