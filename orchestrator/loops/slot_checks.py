"""Checks due slots of a run: files of submitted work, and leases that end soon or have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from orchestrator.chain.run_interface import error_name
from orchestrator.domain.deliveries import tried_in_time
from orchestrator.domain.lease_terms import DeliveryTime
from orchestrator.domain.slots import Counted, SlotEvent, SlotState, StoredFileState, after
from orchestrator.runs.leasing import SlotLeasing
from orchestrator.storage.service import UploadService
from orchestrator.store.relayer import RelayedKind, RelayedTransaction, RelayerStore
from orchestrator.store.run_rows import SlotRow
from orchestrator.store.runs import RunStore
from protocol.errors import MusterError
from protocol.identity.signing import unix_ms
from protocol.leases import WorkKey
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock, milliseconds
from protocol.runtime.logs import get_logger
from protocol.wire.relayed import ReceiptState

OVERDUE_AT_ONCE = 500
RECHECK_MS = 5_000
"""Delay before a slot is checked again while its work is in the relayer's queue or the object store is down, in
milliseconds."""
BEFORE_END_MS = 60_000
"""Time before the end of a lease, in milliseconds, at which relayed work is looked up on the ledger again. If a reorg
removed the work, there is still time to relay it again."""
CONCURRENT_FILE_CHECKS = 16
"""Maximum number of concurrent requests to the object store."""
FILE_CHECK_TIMEOUT = timedelta(seconds=5)
"""Time limit of a look-up in the object store. A slower store counts as down, so that it does not delay this loop."""
SHORTEST_RECHECK_MS, LONGEST_RECHECK_MS = 2_000, 60_000
"""Bounds of the delay before an absent file is looked up again, in milliseconds. Between these bounds, the delay is
half of the time since the submission."""

_log = get_logger(__name__)


class SlotChecks:
    """Checks due slots of a run, and ends overdue leases.

    Args:
        leasing: Leasing service of the run.
        relayer_store: Queue of the relayer. A lease does not count as undelivered while its work is queued there.
        uploads: Looks up files in the pool's store. Work whose file is absent there does not count as pending.
        lease: Leader lease of the run's loop.
        clock: Clock of deadlines.
    """

    def __init__(
        self,
        leasing: SlotLeasing,
        *,
        relayer_store: RelayerStore,
        uploads: UploadService,
        lease: LeaderLease,
        clock: Clock,
    ) -> None:
        self._terms = leasing.terms
        self._store: RunStore = leasing.store
        self._ledger = leasing.ledger
        self._relayer_store = relayer_store
        self._uploads = uploads
        self._lease = lease
        self._clock = clock
        self._store_answers = True

    def begin_round(self) -> None:
        """Asks the object store again, also if it did not answer in the last round."""
        self._store_answers = True

    async def check_due(self) -> None:
        """Checks the slots that are due, and sets when each is checked next."""
        now, state = unix_ms(self._clock.now()), await self._store.state()
        submitted = []
        for name in await self._store.due(now_ms=now, limit=OVERDUE_AT_ONCE):
            row = await self._store.slot(name)
            if row is not None and row.slot.counted is Counted.RETURNED:
                await self._check_returned(row, now=now)
            elif row is None or row.slot.state not in {SlotState.LEASED, SlotState.SUBMITTED}:
                await self._store.drop_due(name)
            elif row.slot.state is SlotState.SUBMITTED:
                submitted.append(row)
            else:
                await self._check_slot_lease(row, now=now, synced=state.synced_ms)
        await self._check_files(submitted, now=now, judged_ms=state.judged_s * 1000)

    async def _check_files(self, rows: Sequence[SlotRow], *, now: int, judged_ms: int) -> None:
        """Looks up the files of submitted work, and sets when each slot is checked next.

        A slot whose file is present is checked again at the end of the time for which its step waits for a verdict. An
        absent file is looked up again until no validator may judge the work any more.
        """
        asked = [row for row in rows if row.slot.file is not StoredFileState.PRESENT]
        concurrent = asyncio.Semaphore(CONCURRENT_FILE_CHECKS)

        async def check(row: SlotRow) -> SlotEvent:
            async with concurrent:
                return await self.file_event(row)

        answers = dict(zip((row.id for row in asked), await asyncio.gather(*map(check, asked)), strict=True))
        for row in rows:
            answer = answers.get(row.id, SlotEvent.FILE_UNKNOWN)
            slot = row.slot if answer is SlotEvent.FILE_UNKNOWN else after(row.slot, answer)
            ends = row.at_ms + milliseconds(self._terms.pending)
            if now >= ends:
                slot = after(slot, SlotEvent.PENDING_OVER)
            due: int | None = ends if now < ends else None
            if slot.file is not StoredFileState.PRESENT and now < max(ends, row.at_ms + judged_ms):
                due = now + _recheck_after_ms(now - row.at_ms, answered=answer is not SlotEvent.FILE_UNKNOWN)
            if slot != row.slot or due is None:
                await self._store.write(row, slot, {}, due_ms=due, lease=self._lease.value)
            else:
                await self._store.postpone(row.id, until_ms=due)

    async def file_event(self, row: SlotRow) -> SlotEvent:
        """Looks up the file of submitted work.

        After a failure, the object store is not asked again in this round, and the result is unknown.
        """
        if not self._store_answers:
            return SlotEvent.FILE_UNKNOWN
        try:
            async with asyncio.timeout(FILE_CHECK_TIMEOUT.total_seconds()):
                is_there = await self._uploads.has_work(row)
        except (MusterError, TimeoutError) as error:
            _log.warning("file-not-looked-up", key=row.key, error=str(error)[:200])
            self._store_answers = False
            return SlotEvent.FILE_UNKNOWN
        return SlotEvent.FILE_PRESENT if is_there else SlotEvent.FILE_ABSENT

    async def _check_returned(self, row: SlotRow, *, now: int) -> None:
        """Frees the escrow and stake of a released lease once its work can no longer be submitted."""
        until = row.expiry * 1000 + milliseconds(self._terms.grace)
        if now < until:
            await self._store.postpone(row.id, until_ms=until)
        else:
            await self.end(row, SlotEvent.LEASE_OVER, {})

    async def _check_slot_lease(self, row: SlotRow, *, now: int, synced: int) -> None:
        """Checks a live lease, and sets when it is checked next.

        A lease is checked when its step stops waiting for it, shortly before its end, and after its end.
        """
        until = row.expiry * 1000 + milliseconds(self._terms.grace)
        key = WorkKey(
            pool_id=self._terms.pool_id, run=self._terms.run, node=row.node, step=row.step, index=row.index
        ).hash
        queued = await self._relayer_store.get(RelayedKind.WORK, key)
        if until <= min(now, synced):
            await self._end_lease(row, queued, now=now)
            return
        relay_again_ms, waits_until = row.expiry * 1000 - BEFORE_END_MS, _waits_until_ms(row)
        # All three times may have passed, because the lease ends only when the ledger was read beyond its end, too.
        due = next((at for at in sorted((waits_until, relay_again_ms, until)) if at > now), now + RECHECK_MS // 5)
        if row.slot.counted is Counted.LEASED and now >= waits_until:
            # From now on the slot's groups are leased to other nodes.
            new = after(row.slot, SlotEvent.WAIT_OVER)
            await self._store.write(row, new, {}, due_ms=due, lease=self._lease.value)
        else:
            await self._store.postpone(row.id, until_ms=due)
        carried = queued is not None and queued.state is ReceiptState.CARRIED
        if now >= relay_again_ms and carried and await self._ledger.work(key) is None:
            # The relayer has a receipt, but the ledger has no such work: a short reorg removed the transaction, and the
            # event reader saw neither the event nor its removal.
            await self._relayer_store.requeue(RelayedKind.WORK, key, now_ms=now)

    async def _end_lease(self, row: SlotRow, queued: RelayedTransaction | None, *, now: int) -> None:
        """Ends a lease without work, as excused or undelivered.

        The caller has read the ledger beyond the lease's end.
        """
        if queued is not None and queued.state is ReceiptState.QUEUED:
            await self._store.postpone(row.id, until_ms=now + RECHECK_MS)
            return
        in_time = queued is not None and tried_in_time(
            handed_in_ms=queued.at_ms, expiry_s=row.expiry, error=error_name(queued.reason)
        )
        event = SlotEvent.LAPSED if in_time or row.excused else SlotEvent.LEASE_OVER
        await self.end(row, event, {"ended": str(row.expiry * 1000)})
        if event is SlotEvent.LEASE_OVER and row.granted_ms:
            # The lease is recorded as a delivery that took twice as long, so that too short leases become longer again.
            await self._store.record_delivery_time(DeliveryTime(2 * (row.expiry * 1000 - row.granted_ms), row.groups))

    async def end(self, row: SlotRow, event: SlotEvent, fields: dict[str, str]) -> None:
        """Ends a slot by an event; it is not checked again."""
        new = after(row.slot, event)
        await self._store.write(row, new, fields, due_ms=None, lease=self._lease.value)


def _waits_until_ms(row: SlotRow) -> int:
    """Returns the time until which a step waits for a slot, in Unix milliseconds."""
    return row.waits_until_ms or (row.granted_ms + row.expiry * 1000) // 2


def _recheck_after_ms(age_ms: int, *, answered: bool) -> int:
    """Returns the delay before an absent file is looked up again, in milliseconds.

    `answered` is False if the store did not answer the last look-up.
    """
    return min(LONGEST_RECHECK_MS, max(SHORTEST_RECHECK_MS, age_ms // 2)) if answered else RECHECK_MS
