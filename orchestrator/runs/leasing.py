"""Leases slots to nodes, finds the step that needs rollouts, judges delivery records."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from orchestrator.chain.run_interface import JoinedNode, RunLedger
from orchestrator.domain.deliveries import Delivered, PastLease, judge_deliveries
from orchestrator.domain.lease_terms import lease_length, wait_length
from orchestrator.domain.run_terms import RunTerms
from orchestrator.domain.slots import Counted, SlotEvent, SlotState, StoredFileState, after
from orchestrator.domain.steps import StepCount, Window, choose_step
from orchestrator.store.run_rows import RunState, SlotRow, slot_id
from orchestrator.store.runs import RunStore, units_for
from orchestrator.store.scripts import LeaseSlot
from protocol.errors import Conflict, Forbidden, Unavailable
from protocol.identifiers import Address, Digest
from protocol.identity.keys import Key
from protocol.identity.signing import unix_ms
from protocol.leases import Lease, SlotSalt
from protocol.runtime.clock import Clock, milliseconds
from protocol.runtime.tracing import Tracer
from protocol.wire.leases import MOST_UNITS as MOST_LEASED_UNITS
from protocol.wire.leases import SignedLease
from protocol.wire.runs import MOST_RELAYS, CheckpointRef, StepAnswer
from protocol.wire.slots import Deliveries, LeaseState, LeaseView, SlotGrant, SlotName, SlotRequest

SHOWN_LEASES = 200
"""Maximum number of newest leases that the API lists for a node."""
HOLDERS = 3
"""While other providers ask for slots, one provider may hold at most 1/`HOLDERS` of a step, so that its slow nodes
can't delay the whole step."""
ASKING = timedelta(minutes=1)
"""Time after its last request for which a provider counts as asking for slots; the duration of a lease, if that is
longer."""
_ATTEMPTS = 4

_STATES = {
    SlotState.LEASED: LeaseState.LIVE,
    SlotState.UNDELIVERED: LeaseState.UNDELIVERED,
    SlotState.RELEASED: LeaseState.RELEASED,
    SlotState.LAPSED: LeaseState.LAPSED,
}

_REFUSALS = {
    "closed": "step {step} is closed",
    "ahead": "step {step} is too far ahead of version {version}",
    "earlier": "step {detail} needs rollouts before step {step}",
    "enough": "step {step} has all the rollouts that it needs, or they are in progress",
    "busy": "the node holds {most_live} slots already",
    "share": "the node's provider holds a third of step {step} already, and other providers ask for slots",
    "accused": "work of this node was judged forged: it gets no slots until that verdict is overturned or final",
    "trial": "the node delivered too few of its leases: it holds one slot at a time until it delivers more",
    "escrow": "the pool's escrow can't pay for more work than the open work",
    "stake": "the stake of the node's provider does not cover more open work",
    "full": "the node has used all its indices of step {step}",
}


_tracer = Tracer(__name__)


class NoSlot(Conflict):
    """There is no slot for this node now.

    This is no failure. The node asks `/run/step` again; the answer contains the time to wait.
    """

    code = "no-slot"
    default_hint = "ask for the step again, and for a slot when it needs rollouts"


class SlotLeasing:
    """Service that leases the slots of one run.

    Args:
        terms: Terms of the run.
        store: Store of the run.
        ledger: The run on the ledger.
        relays: Returns the URLs of registered relays.
        unverifiable: Returns those of the given names that no validator of the pool can verify.
        key: The pool's orchestrator key, which signs leases.
        clock: Clock of leases.
    """

    def __init__(
        self,
        *,
        terms: RunTerms,
        store: RunStore,
        ledger: RunLedger,
        relays: Callable[[], Awaitable[Sequence[str]]],
        unverifiable: Callable[[Sequence[str]], Awaitable[tuple[str, ...]]],
        key: Key,
        clock: Clock,
    ) -> None:
        self.terms = terms
        self._relays = relays
        self._unverifiable = unverifiable
        self.store = store
        self.ledger = ledger
        self._key = key
        self._clock = clock

    async def step(self) -> StepAnswer:
        """Returns the smallest step with too few rollouts, and the version to use for it."""
        state = await self.store.state()
        checkpoint, reason = await self.checkpoint(state), await self.obstacle(state)
        step, need = state.floor, 0
        if checkpoint is not None and not reason:
            window = self.window(state)
            choice = choose_step(window, await self.counts(window), default_demand=self.terms.default_demand)
            step, need = choice.step, choice.need
            if not need and step not in window:
                reason = (
                    f"steps up to {step} have all their rollouts; the next ones need version {checkpoint.version + 1}"
                )
            elif not need:
                reason = "every open step has the rollouts that it needs, or they are in progress"
        return StepAnswer(
            run=self.terms.name,
            run_id=self.terms.run,
            step=step,
            need=need,
            groups_per_slot=self.terms.groups_per_slot,
            checkpoint=checkpoint,
            retry_after_ms=0 if need else milliseconds(self.terms.ask_again),
            reason=reason,
            gateway=self.terms.gateway or "",
        )

    async def obstacle(self, state: RunState) -> str:
        """Returns the reason why no node gets slots now; empty if nodes get slots."""
        if reason := self._obstacle_besides_funds(state):
            return reason
        units, leases = await self.store.open_leases()
        if not state.budget.covers(state.units, open_units=units, open_leases=leases):
            return "the pool's escrow can't pay for more work than the open work"
        return ""

    def _obstacle_besides_funds(self, state: RunState) -> str:
        """Returns the same as `obstacle`, but does not check the escrow.

        A request for a slot that is leased already needs no further escrow.
        """
        if not state.ready:
            return "the orchestrator has not read the ledger to its end yet"
        if state.version is None:
            return "no version of the policy is announced yet"
        if not state.digest:
            return f"version {state.version} was announced anew, and the trainer has not switched to it yet"
        if not state.active:
            return "the pool is not active on the ledger"
        return notice_fault(self.terms.lease, notice_s=state.notice_s)

    def window(self, state: RunState) -> Window:
        """Returns the steps for which rollouts may be generated now."""
        return Window.of(
            floor=state.floor,
            version=state.version or 0,
            async_level=self.terms.async_level,
            serving=self.terms.serving,
        )

    async def counts(self, window: Window) -> dict[int, StepCount]:
        """Returns the counts of the window's steps."""
        return {step: row.count for step, row in (await self.store.steps(list(window.steps))).items()}

    # Slots

    async def lease(self, node: Address, request: SlotRequest) -> SlotGrant:
        """Leases a slot to a node; a repeated request id returns the same slot.

        Raises:
            Forbidden: The node is not a healthy member.
            NoSlot: There is no slot for the node now.
            Unavailable: The chain is down; or other requests changed the run's state in all four attempts.
        """
        asked = self._clock.now()
        for _ in range(_ATTEMPTS):
            state = await self.store.state()
            if reason := self._obstacle_besides_funds(state):
                raise NoSlot(reason)
            membership = await self._membership(node)
            outcome, detail = await self._grant(node, request, state, membership)
            if outcome in {"ok", "again"}:
                grant = self._grant_of(await self._live(detail))
                if outcome == "ok":
                    lease = grant.lease.lease
                    key = lease.key.hash
                    _tracer.record("lease", key, since=asked, root=True, node=node, step=lease.step)
                return grant
            if outcome == "stake-unknown":
                await self.cache_free_stake(membership.provider, state)
            elif outcome == "not-active":
                raise _not_active(detail)
            elif outcome in _REFUSALS:
                values = {
                    "detail": detail,
                    "step": request.step,
                    "version": state.version,
                    "most_live": self.terms.most_live,
                }
                raise NoSlot(_REFUSALS[outcome].format_map(values))
        raise Unavailable(f"other requests changed the run's state in all {_ATTEMPTS} attempts", hint="try again")

    async def _grant(
        self, node: Address, request: SlotRequest, state: RunState, membership: JoinedNode
    ) -> tuple[str, str]:
        on_trial = await self._check_deliveries(node, membership.provider)
        block = max(state.block, membership.block)
        beacon = await self.ledger.block_hash(block)
        if beacon is None:
            raise NoSlot(f"block {block}, whose hash is part of the seed, is not confirmed yet")
        times = await self.store.times()
        # A served slot ends when its clients have been answered, so delivery times say nothing about slow nodes.
        most, serving = self.terms.lease, self.terms.serving
        lease = most if serving else lease_length(times, least=self.terms.lease_least, most=most)
        lease_ms, now = milliseconds(lease), self._now_ms()
        # No step waits for a node on trial. Otherwise nodes that fail on purpose could each delay a step with one slot.
        waits_ms = 0 if on_trial else milliseconds(wait_length(lease))
        leased = await self.store.lease_slot(
            LeaseSlot(
                node=node,
                provider=membership.provider,
                step=request.step,
                groups=request.groups,
                request=request.request_id,
                now_ms=now,
                waits_until_ms=now + waits_ms,
                expiry_s=(now + lease_ms) // 1000,
                remembered_ms=lease_ms,
                version=state.version or 0,
                digest=state.digest,
                async_level=self.terms.async_level,
                default_demand=self.terms.default_demand,
                groups_per_slot=self.terms.groups_per_slot,
                most_units=MOST_LEASED_UNITS,
                most_live=1 if on_trial else self.terms.most_live,
                beacon=beacon,
                beacon_block=block,
                asking_ms=max(milliseconds(ASKING), lease_ms),
                holders=HOLDERS,
                serving=serving,
            )
        )
        return "trial" if leased.outcome == "busy" and on_trial else leased.outcome, leased.slot

    async def _check_deliveries(self, node: Address, provider: Address) -> bool:
        """Returns whether the record of a node or of its provider limits the node to one slot.

        Raises:
            NoSlot: The node or its provider is throttled, and gets no leases for some time.
        """
        records = (
            ("the node", await self.delivered(node)),
            ("the nodes of this provider together", await self._delivered_by_provider(provider)),
        )
        for subject, record in records:
            if record.resting_until_ms is not None:
                seconds = math.ceil((record.resting_until_ms - self._now_ms()) / 1000)
                raise NoSlot(f"{subject} delivered too few leases: no slots for another {seconds} s")
        return any(record.on_trial for _, record in records)

    async def _live(self, name: str) -> SlotRow:
        row = await self.store.slot(name)
        if row is None or row.slot.state is not SlotState.LEASED:
            raise NoSlot("the lease of this request has ended", hint="ask for another slot, with a new request id")
        return row

    def _grant_of(self, row: SlotRow) -> SlotGrant:
        lease = Lease(
            pool_id=self.terms.pool_id,
            run=self.terms.run,
            step=row.step,
            index=row.index,
            node=row.node,
            version=row.version,
            digest=row.digest,
            beacon_block=row.beacon_block,
            salt=self._salt(row),
            groups=row.groups,
            max_units=row.max_units,
            expiry=row.expiry,
        )
        domain = self.ledger.domain
        signed = SignedLease.of(lease, domain=domain, signature=lease.sign(self._key, domain))
        return SlotGrant(lease=signed, beacon=row.beacon)

    def _salt(self, row: SlotRow) -> Digest:
        """Derives a slot's salt, the part of its seed that is secret until the slot is leased.

        The salt is derived from the orchestrator's key and is not stored, so that it can't leak before the lease.
        """
        salt = SlotSalt(
            pool_id=self.terms.pool_id,
            run=self.terms.run,
            step=row.step,
            index=row.index,
            node=row.node,
            version=row.version,
            digest=row.digest,
        )
        return salt.derive(self._key, self.ledger.domain)

    async def release(self, node: Address, slots: tuple[SlotName, ...]) -> None:
        """Releases slots of a node; ignores slots whose lease has ended."""
        now = self._now_ms()
        for row in await self.store.slots([slot_id(each.step, node, each.index) for each in slots]):
            then = after(row.slot, SlotEvent.GIVEN_BACK if row.excused else SlotEvent.RELEASED)
            if then != row.slot:
                due = row.expiry * 1000 if then.counted is Counted.RETURNED else None
                await self.store.write(row, then, {"ended": str(now)}, due_ms=due)

    async def deliveries(self, node: Address) -> Deliveries:
        """Returns a node's delivery record and the outcomes of its newest leases."""
        rows = await self.store.leases_of(node, limit=SHOWN_LEASES)
        judged = self._judge(rows)
        return Deliveries(
            delivered=judged.delivered,
            undelivered=judged.undelivered,
            threshold=self.terms.deliveries.threshold,
            resting_until_ms=judged.resting_until_ms,
            leases=tuple(_view(row) for row in rows),
        )

    async def delivered(self, node: Address) -> Delivered:
        """Returns the delivery record of a node."""
        newest = self.terms.deliveries.newest + self.terms.most_live
        return self._judge(await self.store.leases_of(node, limit=newest))

    async def _delivered_by_provider(self, provider: Address) -> Delivered:
        """Returns the delivery record of all nodes of a provider together."""
        terms = self.terms.deliveries.of_provider()
        past: list[PastLease] = []
        skipped, limit = 0, terms.newest + self.terms.most_live
        # Live leases don't count. Each node of the provider may hold `most_live` of them, so one page may be too few.
        while sum(lease.counts for lease in past) < terms.newest:
            rows = await self.store.leases_of_provider(provider, skipped=skipped, limit=limit)
            past += _past(rows)
            skipped += limit
            if len(rows) < limit:
                break
        return judge_deliveries(past, terms=terms, now_ms=self._now_ms())

    def _judge(self, rows: Sequence[SlotRow]) -> Delivered:
        return judge_deliveries(_past(rows), terms=self.terms.deliveries, now_ms=self._now_ms())

    async def checkpoint(self, state: RunState) -> CheckpointRef | None:
        """Returns the version for which slots are leased, with its checkpoint relays and unverifiable classes.

        The relays are those that the trainer or the settings name, and the registered ones.
        """
        found = checkpoint_of(state)
        if found is None:
            return None
        relays = dict.fromkeys([*found.relays, *await self._relays()])
        unverifiable = await self._unverifiable(found.arithmetic)
        return found.model_copy(update={"relays": tuple(relays)[:MOST_RELAYS], "unverifiable": unverifiable})

    # Cached ledger state

    async def _membership(self, node: Address) -> JoinedNode:
        known = (await self.store.memberships([node])).get(node)
        if known is not None:
            return known
        state, active = await self.store.node_state(node)
        if not active:  # checked before the chain is read, because any key can sign requests
            raise _not_active(state)
        membership = await self.ledger.membership(node)
        if membership is None:
            raise Forbidden(f"{node} is not a member of the pool", hint="join the pool first", code="not-a-member")
        await self.store.cache_membership(node, membership)
        return membership

    async def cache_free_stake(self, provider: Address, state: RunState) -> None:
        """Reads a provider's free stake, and caches the number of work units that it covers."""
        free = await self.ledger.free_stake(provider)
        await self.store.cache_stake(provider, units_for(free, state.penalty))

    def _now_ms(self) -> int:
        return unix_ms(self._clock.now())


def notice_fault(lease: timedelta, *, notice_s: int) -> str:
    """Returns an error text if leases are longer than the notice period, else an empty text.

    Escrow and membership are guaranteed only for leases that end within the notice period.
    """
    lease_s = math.ceil(lease.total_seconds())
    if lease_s <= notice_s:
        return ""
    return (
        f"the setting run_lease_s is {lease_s} s, and the pool's notice period only {notice_s} s: the pool's owner "
        "has to lower run_lease_s"
    )


def checkpoint_of(state: RunState) -> CheckpointRef | None:
    """Returns the version for which slots are leased.

    The result is None before the first version, and after the version was announced again with another digest.
    """
    if state.version is None or state.publisher is None or not state.digest:
        return None
    return CheckpointRef(
        version=state.version,
        attempt=state.attempt,
        digest=state.digest,
        block=state.block,
        publisher=state.publisher,
        relays=state.relays,
        arithmetic=state.arithmetic,
    )


def _past(rows: Sequence[SlotRow]) -> list[PastLease]:
    return [PastLease(row.slot, row.ended_ms, row.reason, row.late) for row in rows]


def _not_active(state: str) -> Forbidden:
    return Forbidden(
        f"the node is {state}, and only healthy members lease slots",
        hint="`muster worker status` shows its state",
        code="not-active",
    )


def _view(row: SlotRow) -> LeaseView:
    return LeaseView(
        step=row.step,
        index=row.index,
        version=row.version,
        groups=row.groups,
        granted_at_ms=row.granted_ms,
        expires_at_ms=row.expiry * 1000,
        state=_lease_state(row),
    )


def _lease_state(row: SlotRow) -> LeaseState:
    if (state := _STATES.get(row.slot.state)) is not None:
        return state
    [past] = _past([row])
    if past.failed and row.slot.file is StoredFileState.ABSENT:
        return LeaseState.FILE_ABSENT
    if row.late:
        return LeaseState.LATE
    return LeaseState.REJECTED if past.failed or past.rejected else LeaseState.SUBMITTED
