"""Loop that applies a run's ledger events to its slots; then `slot_checks` checks those that are due.

All writes are idempotent, because an event may be read more than once, and after a loss of Redis all events are read
again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ledger.client.event_follower import ObservedEvent
from ledger.events.types import (
    CheckpointAnnounced,
    LedgerEvent,
    MemberJoined,
    MemberLeft,
    ProviderBanned,
    VerdictGiven,
    WorkDisputed,
    WorkExpired,
    WorkFinal,
    WorkSubmitted,
)
from orchestrator.chain.run_events import (
    ENDED,
    REMOVED_BY_POOL,
    SLOT_STATES,
    EscrowEvent,
    StakeEvent,
    WorkEvent,
    slot_event_of,
)
from orchestrator.domain.lease_terms import Budget, DeliveryTime, is_late
from orchestrator.domain.slots import LEASED, SlotEvent, SlotState, StoredFileState, after, as_on_ledger
from orchestrator.loops.slot_checks import SlotChecks
from orchestrator.relayer.strategies import WorkStrategy
from orchestrator.runs.control import RunControl
from orchestrator.runs.leasing import SlotLeasing, notice_fault
from orchestrator.storage.service import UploadService
from orchestrator.store.relayer import RelayedKind, RelayedTransaction, RelayerStore
from orchestrator.store.run_rows import SlotRow, slot_id
from orchestrator.store.runs import MOST_UNITS, RunStore, units_for
from protocol.errors import Unavailable
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import randbelow
from protocol.verdicts import Outcome
from protocol.wire.relayed import ReceiptState

FUNDS_EVERY = timedelta(seconds=10)
"""Longest time between two reads of the pool's funds; an event about funds or work causes a read at once."""

RENEWED_EVERY = 200
"""Number of events after which the leader lease is renewed, because a large batch may take longer than the lease."""
SERVED_STEP_SLOTS = 1024
"""Number of slots, also of ended ones, after which a step of a serving run is closed, so that its rows are deleted some
steps later. Otherwise idle nodes would fill Redis with the rows of one step."""
MOST_LIVE = 128
"""Number of a node's newest leases among which live ones are looked for; a node may hold at most 64 live leases."""
MOST_LIVE_OF_PROVIDER = 500
"""The same number for all nodes of a provider together. The Lua scripts keep at most 500 slots per provider."""
_ATTEMPTS = 5

_log = get_logger(__name__)


class RunLeaseLost(Unavailable):
    """Another orchestrator has taken the leader lease of this loop."""

    code = "lease-lost"


@dataclass(slots=True)
class _Changes:
    """Funds, nodes and providers that a batch of events changed. They determine which values are read again."""

    funds: bool
    nodes: set[Address]
    providers: set[Address]


class RunSync:
    """Applies the ledger's events of a run to its slots, and ends overdue leases.

    Args:
        leasing: Leasing service of the run.
        control: Control service of the run; returns the fields of the run's state that an announced version sets.
        relayer_store: Queue of the relayer. A lease does not count as undelivered while its work is queued there.
        uploads: Looks up files in the pool's store. Work whose file is absent there does not count as pending.
        lease: Leader lease of this loop.
        clock: Clock of deadlines.
    """

    def __init__(
        self,
        leasing: SlotLeasing,
        control: RunControl,
        *,
        relayer_store: RelayerStore,
        uploads: UploadService,
        lease: LeaderLease,
        clock: Clock,
    ) -> None:
        self._leasing = leasing
        self._control = control
        self._store: RunStore = leasing.store
        self._ledger = leasing.ledger
        self._relayer_store = relayer_store
        self._lease = lease
        self._clock = clock
        self._funds_read_at = float("-inf")
        self._logged_notice_fault = ""
        self._checks = SlotChecks(leasing, relayer_store=relayer_store, uploads=uploads, lease=lease, clock=clock)

    async def round(self) -> int:
        """Applies new events, then checks overdue slots; returns the number of events.

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
            self._checks.begin_round()
            found = await self._ledger.events()
            # Funds are read before events are applied. So the escrow of new work may briefly be reserved twice (on the
            # ledger, and by the open lease here), but it never counts as free.
            await self._read_funds(found.events)
            # Until the ledger was read completely for the first time, events are history: nobody waits for them.
            is_history = bool(found.events) and not (await self._store.state()).ready
            for number, event in enumerate(found.events):
                await self._apply(event)
                await self._announce(event, quiet=is_history)
                if number % RENEWED_EVERY == RENEWED_EVERY - 1:
                    await self._check_leader_lease()
            await found.commit()
            read += len(found.events)
            if not found.more:
                await self._caught_up(started)
                await self._checks.check_due()
                await self._close_full_steps()
                await self._forget_old_steps()
                return read

    # Funds and memberships

    async def _read_funds(self, observed: Sequence[ObservedEvent]) -> None:
        events = [each.event for each in observed]
        changes = _changes_of(events)
        await self._store.drop_cached_memberships(
            [event.node for event in events if isinstance(event, MemberJoined | MemberLeft)]
        )
        now = self._clock.monotonic()
        if not changes.funds and now - self._funds_read_at < FUNDS_EVERY.total_seconds():
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
        self._log_notice_fault(notice_fault(self._leasing.terms.lease, notice_s=int(funds.notice.total_seconds())))
        await self._write_state(fields)
        known = set(await self._store.known_stakes())
        memberships = await self._store.memberships(sorted(changes.nodes))
        if funds.penalty == state.penalty and known:
            known &= changes.providers | {membership.provider for membership in memberships.values()}
        for provider in known:
            free = await self._ledger.free_stake(provider)
            await self._store.cache_stake(provider, units_for(free, funds.penalty))
        self._funds_read_at = now

    def _log_notice_fault(self, fault: str) -> None:
        """Logs an error if `run_lease_s` exceeds the notice period; logs it again only if its text changed."""
        if fault and fault != self._logged_notice_fault:
            _log.error("lease-beyond-notice", detail=fault)
        self._logged_notice_fault = fault

    # Events

    async def _apply(self, observed: ObservedEvent) -> None:
        match observed.event:
            case CheckpointAnnounced(version=version):
                await self._check_version(version)
            case MemberJoined(node=node):
                await self._check_membership(node, removed_by_pool=False)
            case MemberLeft(node=node, cause=cause):
                await self._check_membership(node, removed_by_pool=cause in REMOVED_BY_POOL and not observed.reverted)
            case ProviderBanned(provider=provider) if not observed.reverted:
                rows = await self._store.leases_of_provider(provider, limit=MOST_LIVE_OF_PROVIDER)
                await self._stop_waiting(_live(rows), removed_by_pool=True)
            case WorkSubmitted() | VerdictGiven() | WorkDisputed() | WorkFinal() | WorkExpired() as event:
                await self._note_open_work(event, reverted=observed.reverted)
                if not self._is_of_other_run(event):
                    await self._apply_work(event, reverted=observed.reverted)

    async def _announce(self, observed: ObservedEvent, *, quiet: bool) -> None:
        now, event, time = self._now_ms(), observed.event, None
        if self._is_of_other_run(event):
            return
        if isinstance(event, WorkFinal) and event.paid:  # events that are read late count for the day of their block
            time = await self._ledger.block_time(event.log.block_number)
        day = (now // 1000 if time is None else time) // 86_400
        if not await self._store.announce(observed, quiet=quiet, day=day, now_ms=now, lease=self._lease.value):
            raise _lease_lost()

    def _is_of_other_run(self, event: LedgerEvent) -> bool:
        """Returns whether an event is a submission for another run of the pool.

        Later events about that work name no run. They have no slot here.
        """
        return isinstance(event, WorkSubmitted) and event.run != self._leasing.terms.run

    async def _note_open_work(self, event: WorkEvent, *, reverted: bool) -> None:
        """Records which objects work names that is not final, whatever its run and step: the sweeper keeps these."""
        named: list[tuple[Address, Digest, bool]] = []  # owner, SHA-256, whether it is an audit file
        ended = isinstance(event, WorkFinal | WorkExpired)
        if reverted:
            now = await self._ledger.work(event.key)
            ended = now is None or now.status in ENDED
            named = [] if now is None else [(now.node, now.sha256, False)]
        elif isinstance(event, WorkSubmitted):
            named = [(event.node, event.sha256, False)]
        elif (found := _audit_of(event)) is not None:
            named = [(*found, True)]
        lease = self._lease.value
        if ended:
            written = [await self._store.release_work(event.key, lease=lease)]
        else:
            written = [
                await self._store.note_open_work(event.key, owner=owner, sha256=sha256, audit=audit, lease=lease)
                for owner, sha256, audit in named
            ]
        if not all(written):
            raise _lease_lost()

    async def _apply_work(self, event: WorkEvent, *, reverted: bool) -> None:
        if isinstance(event, WorkFinal) and event.outcome is Outcome.FORGED:
            # If the node left the pool before this event, the ledger does not evict it, so no other event ends its
            # leases.
            await self._check_membership(event.node, removed_by_pool=True)
        for _ in range(_ATTEMPTS):
            if await (self._write_ledger_state(event.key) if reverted else self._write_work(event)):
                return
        await self._check_leader_lease()

    async def _write_work(self, event: WorkEvent) -> bool:
        if isinstance(event, WorkSubmitted):
            return await self._write_submission(event)
        row = await self._store.slot_of(event.key)
        if row is None:
            return True  # the slot's step was deleted because of its age, or the work belongs to another run
        if (audit := _audit_of(event)) is not None:
            owner, sha256 = audit
            await self._store.name_audit(row.id, owner=owner, sha256=sha256, lease=self._lease.value)
        slot, verdict = row.slot, event if isinstance(event, VerdictGiven) else None
        if isinstance(event, WorkExpired) and slot.file is StoredFileState.ABSENT:
            # The file may have been uploaded since the last check. If it is still absent, the lease counts as failed.
            slot = after(slot, await self._checks.file_event(row))
        outcome = event.outcome if isinstance(event, VerdictGiven | WorkFinal) else None
        new = after(slot, slot_event_of(event), outcome)
        if new == row.slot:
            return True
        fields: dict[str, str] = {}
        if verdict is not None:
            fields = {"reason": str(verdict.reason), "audit": verdict.audit_hash, "judge": verdict.validator}
            if verdict.outcome is not Outcome.ACCEPTED:
                fields["ended"] = str(self._now_ms())  # throttling of the node begins with this verdict
        written = await self._store.write(row, new, fields, due_ms=None, lease=self._lease.value)
        first = verdict is not None and not verdict.decisive
        if written and first and outcome is Outcome.ACCEPTED and row.granted_ms:
            await self._store.record_delivery_time(DeliveryTime(max(0, row.at_ms - row.granted_ms), row.groups))
        return written

    async def _write_submission(self, event: WorkSubmitted) -> bool:
        name = slot_id(event.step, event.node, event.index)
        row = await self._store.slot(name)
        fields: dict[str, str] = {}
        if row is None:
            if event.step < (await self._store.state()).floor - self._leasing.terms.kept_steps:
                return True
            row, fields = await self._rebuilt(event, name)
        new = after(row.slot, SlotEvent.SUBMITTED)
        if new == row.slot:
            return True
        now, queued = self._now_ms(), await self._relayer_store.get(RelayedKind.WORK, event.key)
        fields |= {
            "key": event.key,
            "worked": str(event.units),
            "sha256": event.sha256,
            "block": str(event.log.block_number),
            "at": str(now),
            "ended": str(now),
            "transaction": event.log.transaction,
            "figures": json.dumps(WorkStrategy.parse(queued).figures if queued is not None else {}),
            "late": str(int(await self._is_late(row, queued, now=now))),
        }
        # The slot is due at once. When all events are applied, `SlotChecks` looks up its file in the object store,
        # if the work has no verdict yet.
        return await self._store.write(row, new, fields, due_ms=now, lease=self._lease.value)

    async def _rebuilt(self, event: WorkSubmitted, name: str) -> tuple[SlotRow, dict[str, str]]:
        """Rebuilds a slot that Redis lost, from the event of its submission.

        The event has all fields of the slot except the lease's expiry.
        """
        membership = (await self._store.memberships([event.node])).get(event.node) or await self._ledger.membership(
            event.node
        )
        if membership is not None:
            await self._store.cache_membership(event.node, membership)
        row = SlotRow(
            id=name,
            step=event.step,
            index=event.index,
            node=event.node,
            provider=membership.provider if membership is not None else None,
            version=event.version,
            digest=event.checkpoint,
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
        """Copies the state of a slot's work from the ledger to Redis, after a reorg."""
        row = await self._store.slot_of(key)
        if row is None:
            return True
        now = await self._ledger.work(key)
        if now is None:
            await self._relayer_store.requeue(RelayedKind.WORK, key, now_ms=self._now_ms())
            new = LEASED  # the slot counts as a live lease again
        else:
            new = as_on_ledger(SLOT_STATES[now.status], now.outcome)
        due = self._now_ms() if new.state in {SlotState.LEASED, SlotState.SUBMITTED} else None
        # After the reorg, the ledger may have another submission under this work key.
        found = {} if now is None else {"sha256": now.sha256, "worked": str(now.units), "reason": str(now.reason)}
        return await self._store.write(row, new, found, due_ms=due, lease=self._lease.value)

    async def _is_late(self, row: SlotRow, queued: RelayedTransaction | None, *, now: int) -> bool:
        """Returns whether submitted work arrived late because of its node.

        The arrival is the earliest of three times: the submission to the relayer, the last complete read of the ledger,
        and the first read of the work on the ledger. So an outage of the chain or of the orchestrator, or a reorg,
        makes no work late.
        """
        if not row.granted_ms or row.excused:
            return False
        arrived_ms = min(now, (await self._store.state()).synced_ms)
        if queued is not None and queued.state is not ReceiptState.REFUSED:
            arrived_ms = min(arrived_ms, queued.at_ms)
        if row.at_ms:  # a reorg removed the work from the ledger, and it was submitted again
            arrived_ms = min(arrived_ms, row.at_ms)
        duration = timedelta(milliseconds=arrived_ms - row.granted_ms)
        lease = timedelta(milliseconds=row.expiry * 1000 - row.granted_ms)
        return is_late(duration, await self._store.times(), lease=lease)

    async def _check_version(self, version: int) -> None:
        """Updates the version in use after an announcement.

        If the ledger does not announce the version's digest any more, no slots are leased until the trainer names a
        version.
        """
        state = await self._store.state()
        if state.version != version:
            return
        announced = await self._ledger.announced(version)
        if announced is not None and announced.digest == state.digest:
            await self._write_state({"attempt": str(announced.attempt), "block": str(announced.block)})
        elif state.digest:
            _log.warning("version-withdrawn", version=version)
            await self._write_state({"digest": ""})

    async def _check_membership(self, node: Address, *, removed_by_pool: bool) -> None:
        """Ends those leases of a former member whose work the ledger would refuse.

        No step waits for the member's other leases any more.

        After a node left or was removed, the ledger accepts work of leases that expire within the notice period, but
        no work of a node that was evicted for forged work.
        """
        live = _live(await self._store.leases_of(node, limit=MOST_LIVE))
        if not live or await self._ledger.membership(node) is not None:
            return
        held_until = await self._ledger.held_until(node)
        await self._stop_waiting([row for row in live if row.expiry <= held_until], removed_by_pool=removed_by_pool)
        for row in live:
            if row.expiry > held_until:
                await self._checks.end(row, SlotEvent.LEASE_OVER, {"ended": str(self._now_ms())})

    async def _stop_waiting(self, rows: Sequence[SlotRow], *, removed_by_pool: bool) -> None:
        """Makes steps stop waiting for live leases; excuses the leases if the pool removed the node."""
        fields = {"excused": "1"} if removed_by_pool else {}
        for row in rows:
            new = after(row.slot, SlotEvent.WAIT_OVER)
            await self._store.write(row, new, fields, due_ms=self._now_ms(), lease=self._lease.value)

    # The run's state

    async def _caught_up(self, started: int) -> None:
        state = await self._store.state()
        fields = {"synced": str(started)}
        if not state.ready:
            used = await self._store.known_steps(first=0, limit=1)
            # An index that was leased before Redis lost its data must not be leased again, even if no work was
            # submitted for it. So indices continue above a random base.
            fields |= {"ready": "1", "base": str((1 + randbelow(1 << 20)) << 10 if used else 0)}
        units = self._leasing.terms.units_per_group
        if state.version is None and units is not None and (newest := await self._ledger.announced()) is not None:
            fields |= await self._control.fields_of(newest, units=units, relays=())
            fields["floor"] = str(max(state.floor, newest.version))
        await self._write_state(fields)

    async def _close_full_steps(self) -> None:
        """Closes steps of a serving run, which has no trainer that closes them.

        A step is full if its demand is accepted, or if it has `SERVED_STEP_SLOTS` slots. Work of its leases is still
        accepted and paid.
        """
        if not self._leasing.terms.serving:
            return
        while (state := await self._store.state()).version is not None:
            step = self._leasing.window(state).first
            count = (await self._store.steps([step]))[step].count
            if count.accepted < max(1, count.demand) and await self._store.number_of_slots(step) < SERVED_STEP_SLOTS:
                return
            await self._write_state({"floor": str(step + 1)})
            _log.info("served-step-closed", step=step)

    async def _forget_old_steps(self) -> None:
        state, terms = await self._store.state(), self._leasing.terms
        # Accepted files of steps that the trainer has not learned are kept by their slots.
        oldest = (state.floor if terms.serving else min(state.floor, state.version or 0)) - terms.kept_steps
        for step in await self._store.known_steps(first=0, limit=16):
            if step >= oldest:
                return
            await self._store.forget_step(step, lease=self._lease.value)

    async def _write_state(self, fields: dict[str, str]) -> None:
        """Writes fields of the run's state; tries again if a request changed the state meanwhile."""
        for _ in range(_ATTEMPTS):
            state = await self._store.state()
            if await self._store.change(state, fields, now_ms=self._now_ms(), lease=self._lease.value):
                return
            await self._check_leader_lease()
        raise Unavailable(
            f"requests changed the run's state during all {_ATTEMPTS} attempts to write it",
            hint="the next round tries again",
        )

    async def _check_leader_lease(self) -> None:
        """Ends the round without a commit if the leader lease was lost."""
        before = self._lease.value
        if not await self._lease.hold() or self._lease.value != before:
            raise _lease_lost()

    def _now_ms(self) -> int:
        return unix_ms(self._clock.now())


def _audit_of(event: WorkEvent) -> tuple[Address, Digest] | None:
    """Returns owner and SHA-256 of the audit file that an event names; None if it names none."""
    match event:
        case VerdictGiven(validator=owner, audit_hash=sha256) | WorkDisputed(disputer=owner, evidence_hash=sha256):
            return None if sha256 == ZERO_DIGEST else (owner, sha256)
    return None


def _lease_lost() -> RunLeaseLost:
    return RunLeaseLost("another orchestrator has taken the leader lease of the run's loop", hint="no action is needed")


def _live(rows: Sequence[SlotRow]) -> list[SlotRow]:
    return [row for row in rows if row.slot.state is SlotState.LEASED]


def _changes_of(events: Sequence[LedgerEvent]) -> _Changes:
    nodes = {event.node for event in events if isinstance(event, WorkEvent)}
    providers = {event.provider for event in events if isinstance(event, StakeEvent)}
    escrow = any(isinstance(event, EscrowEvent) for event in events)
    return _Changes(funds=bool(nodes or providers or escrow), nodes=nodes, providers=providers)
