"""Applies the ledger's events of a run to its slots, reads the pool's funds, and handles overdue slots.

All writes may be repeated: events are delivered at least once, and after a loss of Redis all of them again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from orchestrator.chain.run_interface import (
    AnnouncementEvent,
    BanEvent,
    MoneyEvent,
    RunEvent,
    SeatEvent,
    WorkEvent,
    error_name,
)
from orchestrator.domain.deliveries import tried_in_time
from orchestrator.domain.lease_terms import Budget, DeliveryTime, is_late
from orchestrator.domain.slots import LEASED, Counted, Slot, SlotEvent, SlotState, StoredFileState, after, as_on_ledger
from orchestrator.runs.control import RunControl
from orchestrator.runs.leasing import SlotLeasing, notice_fault
from orchestrator.storage.service import UploadService
from orchestrator.store.relayer import RelayedKind, RelayedTransaction, RelayerStore
from orchestrator.store.run_rows import SlotRow, slot_id
from orchestrator.store.runs import MOST_UNITS, RunStore, units_for
from protocol.errors import MusterError, Unavailable
from protocol.identifiers import Address, Digest
from protocol.identity.signing import unix_ms
from protocol.leases import WorkKey
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from protocol.verdicts import Outcome
from protocol.wire.relayed import ReceiptState, SubmissionRequest

MONEY_EVERY = timedelta(seconds=10)
"""Interval at which funds are read if no event announces a change."""

OVERDUE_AT_ONCE = 500
"""Overdue slots that are handled in one round."""
RENEWED_EVERY = 200
"""Events after which the leader lease is renewed: the first reading of a long history can outlast it."""
RECHECK_MS = 5_000
"""Delay before a slot is checked again whose state can change at any time."""
CHECK_BEFORE_END_MS = 60_000
"""A lease is checked this long before its end, when there is still time to send its work to the ledger again."""
CONCURRENT_LOOKUPS = 16
"""Concurrent requests to the object store."""
LOOKUP_TIMEOUT = timedelta(seconds=5)
"""A store that takes longer counts as down for the rest of the round, so that the ledger is still read."""
SHORTEST_RECHECK_MS, LONGEST_RECHECK_MS = 2_000, 60_000
"""Bounds of the delay before the store is asked for an absent file again; it is half of the submission's age."""
MOST_LIVE = 128
"""Newest leases of a node that are read to find its live ones; a node may hold 64 of these."""
MOST_LIVE_OF_PROVIDER = 500
_ATTEMPTS = 5

_log = structlog.get_logger(__name__)


class RunLeaseLost(Unavailable):
    """Another orchestrator acquired the leader lease of this loop."""

    code = "lease-lost"


@dataclass(slots=True)
class _Changed:
    """Changes of funds and memberships in a batch of events."""

    money: bool
    nodes: set[Address]
    providers: set[Address]


class RunSync:
    """Keeps a run's slots up to date with the ledger.

    Args:
        leasing: The run's slots, terms and ledger.
        owner: Starts the use of announced versions.
        relay: The relayer's queue: a lease whose work waits there has not missed its delivery.
        uploads: Looks up files in the object store: work counts as pending while its file is there.
        lease: The leader lease of this loop.
        clock: Clock of leases and intervals.
    """

    def __init__(
        self,
        leasing: SlotLeasing,
        owner: RunControl,
        *,
        relay: RelayerStore,
        uploads: UploadService,
        lease: LeaderLease,
        clock: Clock,
    ) -> None:
        self._leasing = leasing
        self._owner = owner
        self._store: RunStore = leasing.store
        self._ledger = leasing.ledger
        self._relay = relay
        self._uploads = uploads
        self._lease = lease
        self._clock = clock
        self._money_at = float("-inf")
        self._notice_logged = ""
        self._store_answers = True

    async def round(self) -> int:
        """Applies new events, then handles overdue slots; returns the number of events.

        Raises:
            Unavailable: The chain is down; no event is skipped, and no lease counts as undelivered meanwhile.
        """
        read = 0
        while True:
            before = self._lease.value
            held = await self._lease.hold()
            if not held or self._lease.value != before:
                self._ledger.forget_position()
            if not held:
                return read
            started = self._now_ms()
            self._store_answers = True
            found = await self._ledger.events()
            # Funds are read before slots are counted: submitted work may be counted twice for a moment, never left out.
            await self._read_money(found.events)
            for number, event in enumerate(found.events):
                await self._apply(event)
                if number % RENEWED_EVERY == RENEWED_EVERY - 1:
                    await self._check_lease()
            await found.commit()
            read += len(found.events)
            if not found.more:
                await self._caught_up(started)
                await self._check_overdue()
                await self._forget_old()
                return read

    # Funds and memberships

    async def _read_money(self, events: Sequence[RunEvent]) -> None:
        changed = _what_changed(events)
        await self._store.forget_seats([event.node for event in events if isinstance(event, SeatEvent)])
        now = self._clock.monotonic()
        if not changed.money and now - self._money_at < MONEY_EVERY.total_seconds():
            return
        funds, state = await self._ledger.funds(), await self._store.state()
        budget = Budget.of(free=funds.free, price=funds.price, fees=funds.fees, most=MOST_UNITS)
        fields = {
            "escrow": str(budget.units),
            "unit_cost": str(budget.unit),
            "lease_cost": str(budget.lease),
            "price": str(funds.price),
            "penalty": str(funds.penalty),
            "active": str(int(funds.active)),
            "notice": str(int(funds.notice.total_seconds())),
            "judged": str(int(funds.judging.total_seconds())),
            "settled": str(int(funds.settling.total_seconds())),
        }
        self._log_notice(notice_fault(self._leasing.terms.lease, notice_s=int(funds.notice.total_seconds())))
        await self._change(fields)
        known = set(await self._store.known_stakes())
        seats = await self._store.seats(sorted(changed.nodes))
        if funds.penalty == state.penalty and known:
            known &= changed.providers | {seat.provider for seat in seats.values()}
        for provider in known:
            free = await self._ledger.free_stake(provider)
            await self._store.remember_stake(provider, units_for(free, funds.penalty))
        self._money_at = now

    def _log_notice(self, fault: str) -> None:
        """Logs once that leases are too long for the pool's terms, also when the terms change."""
        if fault and fault != self._notice_logged:
            _log.error("lease-beyond-notice", detail=fault)
        self._notice_logged = fault

    # Events

    async def _apply(self, event: RunEvent) -> None:
        if isinstance(event, AnnouncementEvent):
            await self._check_version(event.version)
        elif isinstance(event, SeatEvent):
            await self._check_membership(event.node, expelled=event.expelled)
        elif isinstance(event, BanEvent):
            rows = await self._store.leases_of_provider(event.provider, limit=MOST_LIVE_OF_PROVIDER)
            await self._stop_waiting(_live(rows), expelled=True)
        elif isinstance(event, WorkEvent):
            await self._apply_work(event)

    async def _apply_work(self, event: WorkEvent) -> None:
        if event.what is SlotEvent.FINAL and event.outcome is Outcome.FORGED:
            # A node that left before is not evicted again, and no other event says that its leases have ended.
            await self._check_membership(event.node, expelled=True)
        for _ in range(_ATTEMPTS):
            if await self._write_work(event):
                return
        await self._check_lease()

    async def _write_work(self, event: WorkEvent) -> bool:
        if event.reverted:
            return await self._write_ledger_state(event.key)
        if event.what is SlotEvent.SUBMITTED:
            return await self._write_submission(event)
        row = await self._store.slot_of(event.key)
        if row is None:
            return True  # its step is so old that it was forgotten, or it is of another run
        slot = row.slot
        if event.what is SlotEvent.EXPIRED and slot.file is StoredFileState.ABSENT:
            # The file may have been uploaded since the last look-up; if not, the work counts against its node for good.
            slot = after(slot, _FILE_EVENTS[await self._look_up_file(row)])
        then = after(slot, event.what, event.outcome)
        if then == row.slot:
            return True
        fields: dict[str, str] = {}
        if event.what in {SlotEvent.JUDGED, SlotEvent.DECIDED}:
            fields = {"reason": str(event.reason), "audit": event.audit_hash or "", "judge": event.judge or ""}
            if event.outcome is not Outcome.ACCEPTED:
                fields["ended"] = str(self._now_ms())  # the node's rest begins when its work is rejected
        written = await self._store.write(row, then, fields, due_ms=None, lease=self._lease.value)
        if written and event.what is SlotEvent.JUDGED and event.outcome is Outcome.ACCEPTED and row.granted_ms:
            await self._store.remember_time(DeliveryTime(max(0, row.at_ms - row.granted_ms), row.groups))
        return written

    async def _write_submission(self, event: WorkEvent) -> bool:
        name = slot_id(event.step, event.node, event.index)
        row = await self._store.slot(name)
        fields: dict[str, str] = {}
        if row is None:
            if event.step < (await self._store.state()).floor - self._leasing.terms.kept_steps:
                return True
            row, fields = await self._rebuilt(event, name)
        then = after(row.slot, SlotEvent.SUBMITTED)
        if then == row.slot:
            return True
        now, queued = self._now_ms(), await self._relay.get(RelayedKind.WORK, event.key)
        fields |= {
            "key": event.key,
            "worked": str(event.units),
            "sha256": event.sha256 or "",
            "block": str(event.block),
            "at": str(now),
            "ended": str(now),
            "transaction": event.transaction,
            "figures": json.dumps(
                SubmissionRequest.model_validate_json(queued.body).figures if queued is not None else {}
            ),
            "late": str(int(await self._is_late(row, queued, now=now))),
        }
        # Due at once: when all events are read, the store is asked for the files of work without a verdict.
        return await self._store.write(row, then, fields, due_ms=now, lease=self._lease.value)

    async def _rebuilt(self, event: WorkEvent, name: str) -> tuple[SlotRow, dict[str, str]]:
        """Restores a slot that Redis lost from the submission's event, which has all but the expiry of the lease."""
        seat = (await self._store.seats([event.node])).get(event.node) or await self._ledger.seat(event.node)
        if seat is not None:
            await self._store.remember_seat(event.node, seat)
        row = SlotRow(
            id=name,
            step=event.step,
            index=event.index,
            node=event.node,
            provider=seat.provider if seat is not None else None,
            version=event.version,
            digest=event.digest or Digest(""),
            groups=event.groups,
            max_units=event.max_units,
            expiry=self._now_ms() // 1000,
            beacon_block=event.beacon_block,
            slot=LEASED,
            figures={},
        )
        fields = {
            "step": str(row.step),
            "index": str(row.index),
            "node": row.node,
            "provider": row.provider or "",
            "version": str(row.version),
            "digest": row.digest,
            "groups": str(row.groups),
            "units": str(row.max_units),
            "expiry": str(row.expiry),
            "beacon_block": str(row.beacon_block),
        }
        return row, fields

    async def _write_ledger_state(self, key: Digest) -> bool:
        """Writes the current state of work on the ledger, after a reorg."""
        row = await self._store.slot_of(key)
        if row is None:
            return True
        now = await self._ledger.work(key)
        if now is None:
            await self._relay.again(RelayedKind.WORK, key, now_ms=self._now_ms())
            then = LEASED  # until its step stops waiting for it
        else:
            then = as_on_ledger(now.state, now.outcome)
        due = self._now_ms() if then.state in {SlotState.LEASED, SlotState.SUBMITTED} else None
        # After the reorg the ledger may have another submission under this key.
        found = {} if now is None else {"sha256": now.sha256, "worked": str(now.units), "reason": str(now.reason)}
        return await self._store.write(row, then, found, due_ms=due, lease=self._lease.value)

    async def _is_late(self, row: SlotRow, queued: RelayedTransaction | None, *, now: int) -> bool:
        """Returns whether submitted work was late, and its node caused that.

        The time of delivery is that of the submission to the relayer, or of the last complete reading of the ledger
        without the work. So neither an outage of chain or orchestrator nor a reorg makes a node late.
        """
        if not row.granted_ms or row.excused:
            return False
        came = min(now, (await self._store.state()).synced_ms)
        if queued is not None and queued.state is not ReceiptState.REFUSED:
            came = min(came, queued.at_ms)
        if row.at_ms:  # a reorg removed the submission, and it was mined again
            came = min(came, row.at_ms)
        took = timedelta(milliseconds=came - row.granted_ms)
        lease = timedelta(milliseconds=row.expiry * 1000 - row.granted_ms)
        return is_late(took, await self._store.times(), lease=lease)

    async def _check_version(self, version: int) -> None:
        """Updates the run's version after it was announced anew, or its announcement was removed by a reorg."""
        state = await self._store.state()
        if state.version != version:
            return
        announced = await self._ledger.announced(version)
        if announced is not None and announced.digest == state.digest:
            await self._change({"attempt": str(announced.attempt), "block": str(announced.block)})
        elif state.digest:
            _log.warning("version-withdrawn", version=version)
            await self._change({"digest": ""})

    async def _check_membership(self, node: Address, *, expelled: bool) -> None:
        """Stops steps from waiting for a former member's leases; ends leases whose work the ledger would refuse.

        After a node left or was removed, the ledger accepts work of leases that expire within the notice period, but
        none of a node that was evicted for forged work.
        """
        live = _live(await self._store.leases_of(node, limit=MOST_LIVE))
        if not live or await self._ledger.seat(node) is not None:
            return
        held_until = await self._ledger.held_until(node)
        await self._stop_waiting([row for row in live if row.expiry <= held_until], expelled=expelled)
        for row in live:
            if row.expiry > held_until:
                await self._end(row, SlotEvent.LEASE_OVER, {"ended": str(self._now_ms())})

    async def _stop_waiting(self, rows: Sequence[SlotRow], *, expelled: bool) -> None:
        """Stops steps from waiting for live leases; leases of a node that the pool removed are excused."""
        fields = {"excused": "1"} if expelled else {}
        for row in rows:
            then = after(row.slot, SlotEvent.WAIT_OVER)
            await self._store.write(row, then, fields, due_ms=self._now_ms(), lease=self._lease.value)

    # Time

    async def _caught_up(self, started: int) -> None:
        state = await self._store.state()
        fields = {"synced": str(started)}
        if not state.ready:
            used = await self._store.known_steps(first=0, limit=1)
            # Slots that were leased before Redis lost its data must not be leased again, submitted or not.
            fields |= {"ready": "1", "base": str((1 + secrets.randbelow(1 << 20)) << 10 if used else 0)}
        units = self._leasing.terms.units_per_group
        if state.version is None and units is not None and (newest := await self._ledger.announced()) is not None:
            fields |= await self._owner.fields_of(newest, units=units, relays=())
            fields["floor"] = str(max(state.floor, newest.version))
        await self._change(fields)

    async def _check_overdue(self) -> None:
        now, state = self._now_ms(), await self._store.state()
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
                await self._check_lease_end(row, now=now, synced=state.synced_ms)
        await self._look_up_files(submitted, now=now, judged_ms=state.judged_s * 1000)

    # Files of submitted work

    async def _look_up_files(self, rows: Sequence[SlotRow], *, now: int, judged_ms: int) -> None:
        """Asks the store for the files of submitted work, and schedules the next look-up of each.

        Work whose file was found is due again when its step stops waiting for the verdict. The store is asked for an
        absent file until the validators' time to judge the work is over.
        """
        asked = [row for row in rows if row.slot.file is not StoredFileState.PRESENT]
        slots = asyncio.Semaphore(CONCURRENT_LOOKUPS)

        async def look(row: SlotRow) -> StoredFileState:
            async with slots:
                return await self._look_up_file(row)

        answers = dict(zip((row.id for row in asked), await asyncio.gather(*map(look, asked)), strict=True))
        for row in rows:
            answer = answers.get(row.id, StoredFileState.UNKNOWN)
            slot = row.slot if answer is StoredFileState.UNKNOWN else after(row.slot, _FILE_EVENTS[answer])
            ends = row.at_ms + int(self._leasing.terms.pending.total_seconds() * 1000)
            if now >= ends:
                slot = after(slot, SlotEvent.PENDING_OVER)
            due: int | None = ends if now < ends else None
            if slot.file is not StoredFileState.PRESENT and now < max(ends, row.at_ms + judged_ms):
                due = now + _recheck_after_ms(now - row.at_ms, answered=answer is not StoredFileState.UNKNOWN)
            if slot != row.slot or due is None:
                await self._store.write(row, slot, {}, due_ms=due, lease=self._lease.value)
            else:
                await self._store.put_off(row.id, until_ms=due)

    async def _look_up_file(self, row: SlotRow) -> StoredFileState:
        """Asks the store for the file of submitted work; after a failure, not again in the same round."""
        if not self._store_answers:
            return StoredFileState.UNKNOWN
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT.total_seconds()):
                is_there = await self._uploads.has_work(row)
        except (MusterError, TimeoutError) as error:
            _log.warning("file-not-looked-up", key=row.key, error=str(error)[:200])
            self._store_answers = False
            return StoredFileState.UNKNOWN
        return StoredFileState.PRESENT if is_there else StoredFileState.ABSENT

    # Leases

    async def _check_returned(self, row: SlotRow, *, now: int) -> None:
        """Frees the escrow and stake of a lease that its node returned, once it has expired."""
        until = row.expiry * 1000 + int(self._leasing.terms.grace.total_seconds() * 1000)
        if now < until:
            await self._store.put_off(row.id, until_ms=until)
        else:
            await self._end(row, SlotEvent.LEASE_OVER, {})

    async def _check_lease_end(self, row: SlotRow, *, now: int, synced: int) -> None:
        """Handles a lease when its step stops waiting, shortly before its end, and after its end."""
        until = row.expiry * 1000 + int(self._leasing.terms.grace.total_seconds() * 1000)
        terms = self._leasing.terms
        key = WorkKey(pool_id=terms.pool_id, run=terms.run, node=row.node, step=row.step, index=row.index).hash
        queued = await self._relay.get(RelayedKind.WORK, key)
        if until <= min(now, synced):
            await self._end_lease(row, queued, now=now)
            return
        carry_again, waits_until = row.expiry * 1000 - CHECK_BEFORE_END_MS, _wait_ends_ms(row)
        due = next((at for at in sorted((waits_until, carry_again, until)) if at > now), now + RECHECK_MS // 5)
        if row.slot.counted is Counted.LEASED and now >= waits_until:
            # From now on all of its groups may be leased to other nodes.
            then = after(row.slot, SlotEvent.WAIT_OVER)
            await self._store.write(row, then, {}, due_ms=due, lease=self._lease.value)
        else:
            await self._store.put_off(row.id, until_ms=due)
        carried = queued is not None and queued.state is ReceiptState.CARRIED
        if now >= carry_again and carried and await self._ledger.work(key) is None:
            # A reorg too short to cause an event removed the submission, so the receipt is not true any more.
            await self._relay.again(RelayedKind.WORK, key, now_ms=now)

    async def _end_lease(self, row: SlotRow, queued: RelayedTransaction | None, *, now: int) -> None:
        """Ends an expired lease without work; it counts as undelivered if its node caused that.

        The ledger was read beyond the end of the lease.
        """
        if queued is not None and queued.state is ReceiptState.QUEUED:
            await self._store.put_off(row.id, until_ms=now + RECHECK_MS)
            return
        in_time = queued is not None and tried_in_time(
            handed_in_ms=queued.at_ms, expiry_s=row.expiry, error=error_name(queued.reason)
        )
        what = SlotEvent.LAPSED if in_time or row.excused else SlotEvent.LEASE_OVER
        await self._end(row, what, {"ended": str(row.expiry * 1000)})
        if what is SlotEvent.LEASE_OVER and row.granted_ms:
            # Counted as a delivery time of twice the lease, so that lease times that are too short grow again.
            await self._store.remember_time(DeliveryTime(2 * (row.expiry * 1000 - row.granted_ms), row.groups))

    async def _end(self, row: SlotRow, what: SlotEvent, fields: dict[str, str]) -> None:
        then: Slot = after(row.slot, what)
        await self._store.write(row, then, fields, due_ms=None, lease=self._lease.value)

    async def _forget_old(self) -> None:
        oldest = (await self._store.state()).floor - self._leasing.terms.kept_steps
        for step in await self._store.known_steps(first=0, limit=16):
            if step >= oldest:
                return
            await self._store.forget_step(step, lease=self._lease.value)

    async def _change(self, fields: dict[str, str]) -> None:
        """Writes fields of the run's state; retries if requests changed the state meanwhile."""
        for _ in range(_ATTEMPTS):
            state = await self._store.state()
            if await self._store.change(state, fields, now_ms=self._now_ms(), lease=self._lease.value):
                return
            await self._check_lease()
        raise Unavailable("the run changes too fast", hint="the next round writes it")

    async def _check_lease(self) -> None:
        """Ends the round if the leader lease was lost: the events that it read must not be committed."""
        before = self._lease.value
        if not await self._lease.hold() or self._lease.value != before:
            raise RunLeaseLost("another orchestrator follows the run now", hint="nothing is to be done")

    def _now_ms(self) -> int:
        return unix_ms(self._clock.now())


_FILE_EVENTS = {
    StoredFileState.PRESENT: SlotEvent.FILE_PRESENT,
    StoredFileState.ABSENT: SlotEvent.FILE_ABSENT,
    StoredFileState.UNKNOWN: SlotEvent.FILE_UNKNOWN,
}


def _wait_ends_ms(row: SlotRow) -> int:
    """Returns until when a step waits for a slot."""
    return row.waits_until_ms or (row.granted_ms + row.expiry * 1000) // 2


def _live(rows: Sequence[SlotRow]) -> list[SlotRow]:
    return [row for row in rows if row.slot.state is SlotState.LEASED]


def _recheck_after_ms(age_ms: int, *, answered: bool) -> int:
    """Returns the delay before the store is asked for the file again."""
    return min(LONGEST_RECHECK_MS, max(SHORTEST_RECHECK_MS, age_ms // 2)) if answered else RECHECK_MS


def _what_changed(events: Sequence[RunEvent]) -> _Changed:
    works = [event for event in events if isinstance(event, WorkEvent)]
    money = [event for event in events if isinstance(event, MoneyEvent)]
    return _Changed(
        money=bool(works or money),
        nodes={event.node for event in works},
        providers={event.provider for event in money if event.provider is not None},
    )
