"""Judging loops: each takes one item at a time from the queue, examines it, and stages a verdict.

Each step can be repeated: if a process dies, another one continues its work. No verdict is sent before its audit file
is in the object store. An error of this validator never becomes a verdict: the item returns to the queue, or is parked
for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.tracing import Tracer
from protocol.runtime.waiting import cancel_all
from protocol.wire.listings import RolloutItem
from validator.assignment.eligibility import Next, eligibility_of
from validator.chain.connection import PoolChain
from validator.domain.items import LOOKS, Item, ItemKind, Staged
from validator.examination.interface import Conclusion
from validator.loops.disputes import LookResults
from validator.loops.examining import CannotJudge, FileExamination
from validator.loops.juries import Juries
from validator.loops.leased_items import LeasedItems
from validator.loops.verdicts import NOT_OURS_STEP, TURN_CODE, PendingVerdicts, until_turn
from validator.verdicts.audit_file import DrawnRows, audit_file, by_hand

SOONEST = timedelta(seconds=1)
"""Shortest pause before this validator checks again whether it is its turn to decide a dispute."""

LOOKED_AT_AGAIN = timedelta(seconds=5)
"""Longest pause between two checks of a dispute, unless a quarter of the time to this validator's turn is longer.

If another validator contradicts the first verdict, the turn comes earlier; so the check is repeated before the turn.
"""

CRASHED = "validator-crashed"
"""Error code of an unexpected exception while an item was processed."""

_log = get_logger(__name__)
_tracer = Tracer(__name__)


class Judging:
    """The work of the judging loops of one process, which call `round` concurrently.

    Args:
        me: Address of this validator.
        chain: Chain client of the validator's pool.
        items: Leases items of the queue, and returns them.
        examination: Examines files and stores audit files.
        verdicts: Verdicts that wait for a transaction.
        looks: Follow-up of second looks.
        juries: Records the order of validators for disputes on the ledger.
        clock: Clock of pauses and durations.
    """

    def __init__(
        self,
        me: Address,
        *,
        chain: PoolChain,
        items: LeasedItems,
        examination: FileExamination,
        verdicts: PendingVerdicts,
        looks: LookResults,
        juries: Juries,
        clock: Clock,
    ) -> None:
        self._me = me
        self._chain = chain
        self._items = items
        self._examination = examination
        self._verdicts = verdicts
        self._looks = looks
        self._juries = juries
        self._clock = clock

    async def round(self, beat: Callable[[], None] = lambda: None) -> int:
        """Processes items until the queue has none that this process may take; returns their number.

        Args:
            beat: Called after each item, so that the service sees progress during a long round.

        Raises:
            NotPoolValidator: The pool does not list this validator's key.
            ChainUnavailable: The chain can't be read.
            StoreUnavailable: Redis is down; leased items return when their leases expire.
        """
        taken = 0
        await self._items.check_role()
        while (item := await self._items.take()) is not None:
            taken += 1
            try:
                await self._process(item)
            except MusterError as error:
                await self._items.failed(item, error)
            except Exception as error:  # noqa: BLE001 - a bug costs this item an attempt, and must not stop the loop
                _log.exception("examination-crashed", item=item.id)
                await self._items.failed(item, _crash(error))
            finally:
                self._items.survived(item)
            beat()
        return taken

    async def _process(self, item: Item) -> None:
        if self._items.gave_up(item):
            raise _given_up(item)
        looked_at = self._clock.monotonic()
        # This request runs while `_judge` reads the ledger to decide if the item is examined: nearly every item is, so
        # the early start saves a round trip.
        listing = asyncio.ensure_future(self._listed(item))
        try:
            await self._judge(item, listing, looked_at)
        finally:
            await cancel_all([listing])

    async def _judge(self, item: Item, listing: Awaitable[RolloutItem | None], looked_at: float) -> None:
        work, now = await asyncio.gather(self._examination.look_up(item), self._chain.now())
        eligibility = eligibility_of(work, submitted=item.work, kind=item.kind, me=self._me, now=now)
        if eligibility.next is Next.DROP:
            _log.info("dropped", item=item.id, why=eligibility.why)
            await self._items.done(item)
        elif eligibility.next is Next.LEAVE:
            await self._items.postpone(item, NOT_OURS_STEP, code="not-ours", why=eligibility.why)
        elif item.kind is ItemKind.DISPUTE and (wait := await self._until_turn(item, now)):
            await self._items.postpone(
                item, until_turn(wait), code=TURN_CODE, why="other validators decide the dispute first"
            )
        elif item.staged is not None and self._items.has_staged(item):
            await self._verdicts.add(item, item.staged, looked_at=looked_at)
        elif item.resolution is not None:
            await self._conclude(item, by_hand(item.resolution), drawn=None, looked_at=looked_at)
        else:
            with _tracer.span("examination", item.work.key, kind=item.kind.value, step=item.work.step) as span:
                conclusion, drawn = await self._examination.examine(item, await listing)
                span.note(outcome=conclusion.outcome.name.lower(), reason=int(conclusion.reason))
                await self._conclude(item, conclusion, drawn=drawn, looked_at=looked_at)

    async def _listed(self, item: Item) -> RolloutItem | None:
        if self._items.has_staged(item) or item.resolution is not None:
            return None  # the verdict is known, so the file is not needed
        return await self._examination.listed(item)

    async def _until_turn(self, item: Item, now: datetime) -> timedelta:
        """Returns the time until a dispute is checked again; zero if it is this validator's turn.

        The start of the turn is compared with the later one of chain time and local time: on chains that mine on demand
        the newest block may be old, but the block of a new transaction gets the present time.
        """
        ledger = await self._chain.ledger()
        opens_at = await ledger.work.turn_of(item.work.key, self._me)
        if opens_at is None:
            self._juries.missed(item.work.key)
            return SOONEST
        left = opens_at - max(now, self._clock.now())
        if left <= timedelta():
            return timedelta()
        return max(SOONEST, min(left, max(LOOKED_AT_AGAIN, left / 4)))

    async def _conclude(self, item: Item, conclusion: Conclusion, *, drawn: DrawnRows | None, looked_at: float) -> None:
        """Uploads the audit file, then stages the verdict in the queue, then passes the verdict to a sender.

        If the process dies in between, another process finds either no staged verdict, or a staged verdict with an
        audit file that is already in the object store.
        """
        if item.kind in LOOKS:
            conclusion = await self._looks.compared(item, conclusion)
        audit = audit_file(item, conclusion, drawn=drawn, validator=self._me, at=self._chain.about_now())
        sha256 = await self._examination.store(audit)
        self._items.succeeded()
        if item.kind in LOOKS:
            await self._looks.follow_up(item, conclusion, sha256)
            await self._items.done(item)
            return
        staged = Staged(
            validator=self._me, outcome=conclusion.outcome, reason=int(conclusion.reason), audit_hash=sha256
        )
        if await self._items.stage(item, staged):
            await self._verdicts.add(item, staged, looked_at=looked_at)


def _given_up(item: Item) -> MusterError:
    """Returns the reason for giving an item up: its last error, or the repeated deaths of processes that held it."""
    code, why, hint = item.last_error
    if not code:
        code, why = "lost-again-and-again", f"{item.lost} processes in a row died while they held the item"
        hint = "look in the log for the reason why the validator died; `muster validator retry` tries again"
    return CannotJudge(why, hint=hint, code=code)


def _crash(error: Exception) -> MusterError:
    return CannotJudge(
        f"an unexpected error stopped the examination: {type(error).__name__}",
        hint="this is a bug in Muster: please report it with the traceback from the log",
        code=CRASHED,
        retryable=True,
    )
