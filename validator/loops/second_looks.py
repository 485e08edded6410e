"""Follows verdicts and disputes on the ledger: updates the nodes' records, and queues second looks and disputes.

Queueing an item twice does no harm, because a judging loop reads the work's state from the ledger before it examines
the work.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

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
from protocol.runtime.logs import get_logger
from protocol.verdicts import Outcome, ReasonCode
from validator.assignment.turns import delay_of, rank_of
from validator.audit.epochs import Epochs
from validator.audit.second_looks import LookPolicy, is_chosen, may_decide
from validator.domain.items import ItemKind
from validator.domain.progress import LookCounts
from validator.domain.submissions import SubmittedWork
from validator.loops.juries import READABLE, Juries
from validator.queue.store import NewItem, WorkQueue
from validator.store.records import Judged, NodeRecords

_log = get_logger(__name__)

FOLLOWED = (VerdictGiven, VerdictContradicted, VerdictConfirmed, WorkDisputed)
"""Events of the contract `WorkLedger` that this loop reads."""

MOST_AFTER_FAILURE = 1000
"""Maximum number of newest verdicts on a node's work that are searched for acceptances after the node failed."""

MOST_UNDRAWN = 4096
"""Maximum number of verdicts that wait for the ledger's draw of paid second looks; the oldest are dropped first."""

ASKED_AT_ONCE = 64
"""Maximum number of waiting verdicts for which one round reads the result of the draw from the ledger."""

MOST_NODES = 1024
"""Maximum number of failed nodes for which the loop stores how far it has searched the node's verdicts."""

_NOWHERE = (-1, -1)
"""Position before all events."""


@dataclass(slots=True)
class _Undrawn:
    """A first verdict of another validator that may get a paid second look, but whose draw has no result yet."""

    event: VerdictGiven
    asked_at: int = -1
    """Number of the newest block when the loop last read the draw from the ledger; -1 if it has not read it."""


class SecondLooks:
    """Loop that reads verdicts and disputes for one validator.

    Args:
        ledger: Ledger client.
        following: Follower of the events in `FOLLOWED`, with a position that only this validator uses.
        queue: The work queue.
        records: Verdict records of nodes, as this validator keeps them.
        epochs: Audit secrets of this validator, which draw second looks.
        pool_id: Id of the pool.
        policy: Shares of verdicts that get a second look.
        takeover: Time that this validator leaves to each validator before it in the order for a paid second look.
        juries: Records the order of validators for disputes on the ledger.
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
        """Position of the newest verdict that was searched for accepted work, by node whose work has failed."""
        self.counts = LookCounts()

    async def round(self) -> int:
        """Reads one batch of events; returns the number of events of this pool.

        Raises:
            ChainUnavailable: The chain does not answer; the next round reads the same batch.
            StoreUnavailable: Redis is down; the next round reads the same batch.
            CursorTooOld: The chain was reset; the next round reads from the start.
        """
        try:
            return await self._round()
        except BaseException:
            self._looked_through.clear()  # found items may not be in the queue, so the next round searches again
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
            # Verdicts with reason codes from `INFRASTRUCTURE` upwards, such as a person's decision, are no evidence
            # about the node.
            if event.reason < ReasonCode.INFRASTRUCTURE:
                by_node[event.node].append(await self._judged(event))
                await self._keep_provider(event, by_node[event.node][-1])
        for node, judged in by_node.items():
            await self._records.note(node, judged)

    async def _keep_provider(self, event: VerdictGiven, judged: Judged) -> None:
        if judged.outcome is not Outcome.FORGED and not event.decisive:
            return  # only the end of a dispute can clear work that was judged forged
        work = await self._ledger.work.get(event.key)
        if work is not None:
            await self._records.note_provider(work.provider, [judged])

    async def _judged(self, event: VerdictGiven) -> Judged:
        outcome = event.outcome
        if event.decisive:  # the final outcome of a dispute with two verdicts may differ from the second verdict
            work = await self._ledger.work.get(event.key)
            outcome = outcome if work is None or work.outcome is None else work.outcome
        clean = outcome is Outcome.ACCEPTED
        # The time of a clean verdict is never used, and reading a block's time costs a request.
        at = 0 if clean else await self._ledger.block_time(event.log.block_number)
        return Judged(
            key=event.key,
            outcome=outcome,
            own=event.validator == self._me,
            at=datetime.fromtimestamp(at, UTC),
            place=_place(event),
        )

    # Second looks

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
        """Returns True if this validator's secret draws a verdict for a second look.

        The draw uses the newest audit secret that was committed before the verdict's block. If there is none, it uses
        the secret of epoch 0, which is never committed.
        """
        share = self._policy.share(event.outcome)
        if share <= 0:
            return False
        secret = await self._epochs.secret_before(event.log.block_number)
        return is_chosen(self._epochs.secret(0) if secret is None else secret.secret, event.key, share)

    async def _after_failure(self, event: VerdictGiven) -> list[NewItem]:
        """Returns second looks at others' provisional acceptances of a node's work, after the node failed."""
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
        """Returns first verdicts that accept a node's work and can still be disputed, newest first.

        Verdicts that an earlier call has already searched are left out.
        """
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
                break  # the challenge periods of older verdicts have ended, too
            found.append(one)
        self._looked_through[node] = _place(every[-1]) if every else before
        return found

    async def _second_look(self, node: Address, key: Digest) -> list[NewItem]:
        work = await self._ledger.work.get(key)
        if work is None or work.status is not WorkStatus.PROVISIONAL or self._me in {work.node, work.provider}:
            return []
        return await self._items(node, work, key, ItemKind.SECOND_LOOK)

    async def _paid_looks(self) -> dict[tuple[Digest, ItemKind], NewItem]:
        """Returns second looks for which the pool's terms pay, each delayed until this validator's turn.

        The hash of the block after a verdict determines whether the verdict gets a paid look. So a verdict waits for
        that block, which may come late on chains that mine on demand. The loop drops a verdict when the contract can no
        longer read that hash, and loses all waiting verdicts at a restart. This validator then makes no paid looks at
        these verdicts. Second looks that this validator's own secret draws are not affected.
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
            # If the head is only one block after the verdict, False is not final: the RPC endpoint may not know that
            # block's hash yet. So the verdict is kept, and asked about again at a later head.
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
        """Returns the item for a dispute that this validator may decide.

        The item has no delay: a process that takes the item before its turn in the ledger's order puts it back into the
        queue.
        """
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
