"""Follows verdicts on the ledger: updates nodes' records, and queues second looks at verdicts and disputes of others.

Queueing an item twice does no harm; the state of the work is read from the ledger before it is examined.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from cachetools import FIFOCache, LRUCache

from ledger.client import Ledger
from ledger.client.event_follower import EventFollower
from ledger.client.work import WorkRecord, WorkStatus
from ledger.events.types import (
    LedgerEvent,
    VerdictConfirmed,
    VerdictContradicted,
    VerdictGiven,
    WorkDisputed,
    WorkSubmitted,
)
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome, ReasonCode
from validator.assignment.turns import delay_of, rank_of
from validator.audit.epochs import Epochs
from validator.audit.second_looks import LookPolicy, is_chosen, may_decide
from validator.domain.items import ItemKind
from validator.domain.submissions import SubmittedWork
from validator.loops.juries import READABLE, Juries
from validator.queue.store import NewItem, WorkQueue
from validator.store.records import Judged, NodeRecords

_log = structlog.get_logger(__name__)

FOLLOWED = (VerdictGiven, VerdictContradicted, VerdictConfirmed, WorkDisputed)
"""Events of `WorkLedger` that this loop reads."""

MOST_AFTER_FAILURE = 1000
"""Number of a node's newest verdicts that are considered after it failed."""

MOST_UNDRAWN = 4096
"""Maximum verdicts that wait for the draw of paid second looks; the oldest are dropped first."""

ASKED_AT_ONCE = 64

MOST_NODES = 1024

_NOWHERE = (-1, -1)


@dataclass(slots=True)
class LookCounts:
    """Items queued since the start."""

    drawn: int = 0
    """Verdicts of other validators that this validator's secret drew."""
    after_failure: int = 0
    """Acceptances by other validators, of a node whose work failed later."""
    disputes: int = 0
    """Disputes between others that this validator may decide."""
    doubtful: int = 0
    """This validator's own provisional acceptances of nodes that failed later; they can't be withdrawn."""
    paid: int = 0
    """Verdicts of others for which the terms pay one look, at this validator's turn."""
    confirmed: int = 0
    """First verdicts that this validator confirmed on the ledger."""
    contradicted: int = 0
    """Disputes in which another validator contradicted the first verdict and which this validator may decide."""


@dataclass(slots=True)
class _Undrawn:
    """A first verdict of another validator for which the draw of paid looks is pending."""

    event: VerdictGiven
    asked_at: int = -1
    """Newest block at the last attempt."""


class SecondLooks:
    """Reads verdicts and disputes for one validator.

    Args:
        ledger: Ledger client.
        following: Follows `FOLLOWED`, under a name that no other validator on the same Redis uses.
        queue: The work queue.
        records: Records of this validator.
        epochs: Secrets of this validator, which draw second looks.
        pool_id: The pool.
        policy: Shares of second looks.
        takeover: Time that each validator before this one has for a paid look.
        juries: Records the order of validators in disputes.
    """

    def __init__(
        self,
        ledger: Ledger,
        following: EventFollower,
        *,
        queue: WorkQueue,
        records: NodeRecords,
        epochs: Epochs,
        pool_id: int,
        policy: LookPolicy,
        takeover: timedelta,
        juries: Juries,
    ) -> None:
        self._ledger = ledger
        self._following = following
        self._queue = queue
        self._records = records
        self._epochs = epochs
        self._pool_id = pool_id
        self._policy = policy
        self._takeover = takeover
        self._juries = juries
        self._me = epochs.validator
        self._undrawn: FIFOCache[Digest, _Undrawn] = FIFOCache(MOST_UNDRAWN)
        self._looked_through: LRUCache[Address, tuple[int, int]] = LRUCache(MOST_NODES)
        """Newest verdict of a node up to which all were queued, since it failed."""
        self.counts = LookCounts()

    async def round(self) -> int:
        """Reads one batch of events; returns the number of relevant ones.

        Raises:
            ChainUnavailable: The chain does not answer; the batch is read again.
            StoreUnavailable: Redis is down; the batch is read again.
            CursorTooOld: The next round reads from the start; nothing is counted twice.
        """
        try:
            return await self._round()
        except BaseException:
            self._looked_through.clear()  # the items found may not have reached the queue
            raise

    async def _round(self) -> int:
        batch = await self._following.poll(self._ledger)
        current = (each.event for each in self._following.decode(batch) if not each.reverted)
        events = [event for event in current if getattr(event, "pool_id", None) == self._pool_id]
        await self._keep_records([event for event in events if isinstance(event, VerdictGiven)])
        await self._put(await self._wanted(events))
        await self._following.commit(batch)
        await self._put(await self._paid_looks())
        return len(events)

    # Records

    async def _keep_records(self, verdicts: Sequence[VerdictGiven]) -> None:
        by_node: dict[Address, list[Judged]] = defaultdict(list)
        for event in verdicts:
            if event.reason < ReasonCode.INFRASTRUCTURE:  # a person's decision says nothing about the node
                by_node[event.node].append(await self._judged(event))
                await self._keep_provider(event, by_node[event.node][-1])
        for node, judged in by_node.items():
            await self._records.note(node, judged)

    async def _keep_provider(self, event: VerdictGiven, judged: Judged) -> None:
        if judged.outcome is not Outcome.FORGED and not event.decisive:
            return  # only the end of a dispute revokes a finding of forgery
        work = await self._ledger.work.get(event.key)
        if work is not None:
            await self._records.note_provider(work.provider, [judged])

    async def _judged(self, event: VerdictGiven) -> Judged:
        outcome = event.outcome
        if event.decisive:  # if two validators decided a dispute, the outcome may differ from the second one's verdict
            work = await self._ledger.work.get(event.key)
            outcome = outcome if work is None or work.outcome is None else work.outcome
        clean = outcome is Outcome.ACCEPTED
        # Clean verdicts need no time, and reading a block's time costs a call.
        at = 0 if clean else await self._ledger.block_time(event.log.block_number)
        return Judged(
            key=event.key,
            outcome=outcome,
            own=event.validator == self._me,
            at=datetime.fromtimestamp(at, UTC),
            place=_place(event),
        )

    # Looks

    async def _wanted(self, events: Sequence[LedgerEvent | None]) -> dict[tuple[Digest, ItemKind], NewItem]:
        wanted: dict[tuple[Digest, ItemKind], NewItem] = {}
        for event in events:
            found: list[NewItem] = []
            match event:
                case VerdictGiven():
                    found = [*await self._drawn(event), *await self._after_failure(event)]
                case WorkDisputed() | VerdictContradicted():
                    found = await self._dispute(event)
                case VerdictConfirmed():
                    self.counts.confirmed += event.validator == self._me
                case _:
                    pass
            wanted |= {(item.work.key, item.kind): item for item in found}
        return wanted

    async def _drawn(self, event: VerdictGiven) -> list[NewItem]:
        if event.decisive or event.validator == self._me:
            return []
        if not await self._is_chosen(event):
            self._undrawn[event.key] = _Undrawn(event)
            return []
        found = await self._second_look(event.node, event.key)
        self.counts.drawn += len(found)
        return found

    async def _is_chosen(self, event: VerdictGiven) -> bool:
        """Returns whether the epoch's secret draws a verdict; before the first epoch a private secret is used."""
        share = self._policy.share(event.outcome)
        if share <= 0:
            return False
        secret = await self._epochs.secret_before(event.log.block_number)
        return is_chosen(self._epochs.secret(0) if secret is None else secret.secret, event.key, share)

    async def _after_failure(self, event: VerdictGiven) -> list[NewItem]:
        """Returns disputable work of a node that just failed, which other validators accepted."""
        if event.outcome is Outcome.ACCEPTED or event.reason >= ReasonCode.INFRASTRUCTURE:
            return []
        work, terms = await self._ledger.work.get(event.key), await self._ledger.pools.terms(self._pool_id)
        now = await self._ledger.now()
        if work is None or now - work.since > terms.challenge_period:
            return []
        found, doubtful = [], 0
        for one in await self._open_acceptances(event.node, now=now):
            if one.validator == self._me:
                doubtful += 1
            else:
                found += await self._second_look(one.node, one.key)
        if doubtful:
            _log.warning("own-verdicts-doubtful", node=event.node, verdicts=doubtful, failed=event.key)
        self.counts.doubtful += doubtful
        self.counts.after_failure += len(found)
        return found

    async def _open_acceptances(self, node: Address, *, now: datetime) -> list[VerdictGiven]:
        """Returns disputable first verdicts that accept a node's work, without those returned by earlier calls."""
        every = await self._ledger.history(VerdictGiven, pool_id=self._pool_id, second=node)
        before, found = self._looked_through.pop(node, _NOWHERE), []
        for one in every[: -MOST_AFTER_FAILURE - 1 : -1]:
            if _place(one) <= before:
                break
            if one.outcome is not Outcome.ACCEPTED or one.decisive:
                continue
            work = await self._ledger.work.get(one.key)
            if work is None or work.status is not WorkStatus.PROVISIONAL:
                continue
            if work.deadline is None or work.deadline < now:
                break  # older ones are no younger
            found.append(one)
        self._looked_through[node] = _place(every[-1]) if every else before
        return found

    async def _second_look(self, node: Address, key: Digest) -> list[NewItem]:
        work = await self._ledger.work.get(key)
        if work is None or work.status is not WorkStatus.PROVISIONAL or self._me in {work.node, work.provider}:
            return []
        return await self._items(node, work, key, ItemKind.SECOND_LOOK)

    async def _paid_looks(self) -> dict[tuple[Digest, ItemKind], NewItem]:
        """Returns verdicts of others for which the terms pay one look, each at this validator's turn.

        The hash of the next block draws a verdict, so it waits for that block, which may take long on chains that mine
        on demand. Verdicts whose hash can no longer be read are dropped, as are all at a restart. Such looks are not
        paid; looks drawn by this validator's own secret are not affected.
        """
        if not self._undrawn:
            return {}
        head = await self._ledger.block()
        for key in [key for key, each in self._undrawn.items() if head > each.event.log.block_number + READABLE]:
            del self._undrawn[key]
        ready = [
            (key, each)
            for key, each in self._undrawn.items()
            if head > each.event.log.block_number and head > each.asked_at
        ][:ASKED_AT_ONCE]
        if not ready:
            return {}
        if (await self._ledger.pools.terms(self._pool_id)).look_bps == 0:
            for key, _ in ready:
                del self._undrawn[key]
            return {}
        wanted = await asyncio.gather(*(self._ledger.work.look_wanted(key) for key, _ in ready))
        found: dict[tuple[Digest, ItemKind], NewItem] = {}
        for (key, each), is_wanted in zip(ready, wanted, strict=True):
            each.asked_at = head
            # RPC nodes differ in how soon they return the newest hash, so a verdict is tried at two blocks.
            if is_wanted or head > each.event.log.block_number + 1:
                del self._undrawn[key]
            if is_wanted:
                for item in await self._paid_look(each.event):
                    self.counts.paid += 1
                    found[key, ItemKind.PAID_LOOK] = item
        return found

    async def _paid_look(self, event: VerdictGiven) -> list[NewItem]:
        work = await self._ledger.work.get(event.key)
        if work is None or work.status is not WorkStatus.PROVISIONAL or work.deadline is None:
            return []
        validators = await self._ledger.pools.validators(self._pool_id)
        may_look = [each for each in validators if each not in {work.judge, work.node, work.provider}]
        if self._me not in may_look:
            return []
        left = work.deadline - await self._ledger.now()
        delay = delay_of(rank_of(event.key, self._me, may_look), takeover=self._takeover, left=left)
        return await self._items(event.node, work, event.key, ItemKind.PAID_LOOK, delay=delay)

    async def _dispute(self, event: WorkDisputed | VerdictContradicted) -> list[NewItem]:
        """Queues a dispute; a process that takes it before its turn by the ledger's order puts it back."""
        work = await self._ledger.work.get(event.key)
        if work is None or work.status is not WorkStatus.DISPUTED or not may_decide(self._me, work):
            return []
        if self._me not in await self._ledger.pools.validators(self._pool_id):
            return []
        if isinstance(event, WorkDisputed):
            self.counts.disputes += 1
            self._juries.watch(event.key, block=event.log.block_number)
        else:
            self.counts.contradicted += 1
        return await self._items(event.node, work, event.key, ItemKind.DISPUTE)

    async def _items(
        self, node: Address, work: WorkRecord, key: Digest, kind: ItemKind, *, delay: timedelta = timedelta()
    ) -> list[NewItem]:
        submitted = await self._ledger.history(WorkSubmitted, pool_id=self._pool_id, second=node, third=key)
        if not submitted or work.deadline is None:
            return []
        deadline_s = int(work.deadline.timestamp())
        return [NewItem(work=SubmittedWork.of(submitted[-1]), kind=kind, deadline_s=deadline_s, delay=delay)]

    async def _put(self, wanted: dict[tuple[Digest, ItemKind], NewItem]) -> None:
        if wanted:
            await self._queue.put(list(wanted.values()))


def _place(event: VerdictGiven) -> tuple[int, int]:
    return event.log.block_number, event.log.index
