"""The slots of the present task: asked of the orchestrator with the node's key, remembered on disk, named by the task.

A task can't make a lease: it names a slot, and the worker attaches the lease that it obtained for this very task.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import structlog
from pydantic import ValidationError

from protocol.errors import Conflict, MusterError, NotFound, Unavailable, Unprocessable
from protocol.http.client import BadAnswer
from protocol.http.rates import IpRates, Rate
from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Backoff, Deadline, retry
from protocol.wire.leases import SignedLease
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import MOST_RELEASED, RolloutOf, SlotGrant, SlotName, SlotRequest, SlotWish
from worker.delivery.work_signing import LeasedWork
from worker.state import StateDirectory

T = TypeVar("T")

MOST_REMEMBERED = 256
STEP_GOOD_FOR = timedelta(milliseconds=500)
"""A task that asks more often hears the same again: the node's requests are counted, heartbeats among them."""
SLOT_RATE = Rate(count=60, per=timedelta(minutes=1), burst=16)
CHAIN_PATIENCE = timedelta(seconds=5)
"""How long a lease waits for the chain's word; the task asks again afterwards, and gets the same lease."""

_CHAIN_BACKOFF = Backoff(attempts=20, most=timedelta(seconds=1))
_FILE = "leases"
_log = structlog.get_logger(__name__)


FaultOf = Callable[[Lease, Digest], Awaitable[str]]
"""Returns what the chain says against a lease and its beacon; empty if it bears them out."""

PayFaultOf = Callable[[Lease, datetime], Awaitable[str]]
"""Returns why work under a lease may not be paid, at the present time; empty if it is covered."""


async def _covered(lease: Lease, now: datetime) -> str:  # noqa: ARG001 - a `PayFaultOf`
    return ""


class FalseGrant(BadAnswer):
    """The orchestrator leased what the chain does not bear out: whoever worked under it would look like a forger."""

    code = "false-grant"
    default_hint = "nothing is generated for it: tell the pool's owner, and check that the worker's chain is in step"


class NotPaid(Unavailable):
    """The worker leases nothing, because delivered work was not paid or the next may not be."""

    code = "not-paid"
    default_hint = "ask the pool's owner; `muster worker resume` leases again"


class RunService(Protocol):
    """What is asked of the orchestrator."""

    @property
    def address(self) -> Address:
        """Whose signature counts."""
        ...

    async def step(self) -> StepAnswer:
        """What to work on."""
        ...

    async def slot(self, request: SlotRequest) -> SlotGrant:
        """Leases a slot."""
        ...

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        """Gives slots up."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A lease of this task, and the file that was handed over under it."""

    lease: SignedLease
    file: str = ""


class TaskSlots:
    """What one task may work in.

    Args:
        assignment_id: Whose slots they are; those of an earlier assignment are forgotten.
        node: This node.
        pool_id: The pool.
        domain: The contract that takes work.
        state: Where leases are kept.
        service: The orchestrator as it can be reached now; None while there is none.
        fault_of: Compares a lease with the chain.
        pay_fault_of: Compares a lease with the pool's escrow and notice period.
        stopped: Says why this worker leases nothing at present; empty if it does (`worker.delivery.pay_watch`).
        clock: Whose time counts.
    """

    def __init__(
        self,
        *,
        assignment_id: str,
        node: Address,
        pool_id: int,
        domain: SigningDomain,
        state: StateDirectory,
        service: Callable[[], RunService | None],
        fault_of: FaultOf,
        pay_fault_of: PayFaultOf = _covered,
        stopped: Callable[[], str] = lambda: "",
        clock: Clock,
    ) -> None:
        self._assignment_id = assignment_id
        self._node = node
        self._pool_id = pool_id
        self._domain = domain
        self._state = state
        self._service = service
        self._fault_of = fault_of
        self._pay_fault_of = pay_fault_of
        self._unpayable: Lease | None = None
        """The newest lease that was not taken because it may not be paid. Since it counts as undelivered, nothing is
        leased while it would not be taken."""
        self._stopped = stopped
        self._clock = clock
        self._rates = IpRates(SLOT_RATE, clock=clock)
        self._lock = threading.Lock()
        self._held = self._restored()
        self._step: tuple[float, StepAnswer] | None = None
        self._unanswered: tuple[SlotWish, str] | None = None
        self.trouble = ""
        """Why the newest grant was not taken; empty if it was."""

    async def step(self) -> StepAnswer:
        """What to work on now.

        Raises:
            Unavailable: There is no orchestrator at the moment, or it does not answer.
            NotFound: The pool works on no run.
        """
        now = self._clock.monotonic()
        if self._step is not None and self._step[0] > now:
            return self._step[1]
        answer = await self._asked(lambda service: service.step())
        self._step = (self._clock.monotonic() + STEP_GOOD_FOR.total_seconds(), answer)
        return answer

    async def lease(self, wish: SlotWish) -> SlotGrant:
        """Leases a slot for this task.

        Raises:
            Conflict: There is none for this node now; the words say why.
            RateLimited: The task asks too often.
            BadAnswer: The orchestrator leased something else than was asked for.
            FalseGrant: The chain does not bear the lease out.
            NotPaid: This worker leases nothing because its work was not paid, or because the next may not be.
            Unavailable: The orchestrator does not answer, or the chain does not: nothing is generated on trust.
        """
        if unpaid := self._stopped():
            raise NotPaid(f"this worker leases nothing: {unpaid}")
        if self._unpayable is not None:
            await self._check_payment(self._unpayable)
        self._rates.admit("task")
        # A request whose answer was lost is asked again under its own name: its index is not burnt for nothing.
        known = self._unanswered
        request_id = known[1] if known is not None and known[0] == wish else secrets.token_hex(16)
        self._unanswered = (wish, request_id)
        request = SlotRequest(step=wish.step, groups=wish.groups, request_id=request_id)
        try:
            grant = await self._asked(lambda service: service.slot(request))
        except Unavailable:
            raise
        except MusterError:
            self._unanswered = None
            raise
        self._unanswered = self._step = None
        self._check(grant.lease, wish)
        try:
            await self._check_payment(grant.lease.lease)
            await self._check_beacon(grant)
        except (FalseGrant, NotPaid):
            raise
        except Unavailable as error:
            self.trouble = f"a lease could not be compared with the chain: {error.detail}"
            self._unanswered = (wish, request_id)  # the lease is good, as far as anybody knows
            raise
        with self._lock:
            self._held[grant.lease.step, grant.lease.index] = _Held(lease=grant.lease)
            self._save()
        return grant

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        """Gives up slots of this task under which nothing was handed over; others are passed over."""
        mine = tuple(slot for slot in slots if self._is_open(slot))
        if not mine:
            return
        await self._asked(lambda service: service.release(mine))
        with self._lock:
            for slot in mine:
                self._held.pop((slot.step, slot.index), None)
            self._save()

    async def release_rest(self) -> None:
        """Gives up whatever the task leased and will not deliver any more; what can't be said is left to expire."""
        now = self._clock.now()
        with self._lock:
            open_ = [held.lease for held in self._held.values() if not held.file and not held.lease.lease.expired(now)]
        names = tuple(SlotName(step=lease.step, index=lease.index) for lease in open_)
        try:
            for start in range(0, len(names), MOST_RELEASED):
                await self.release(names[start : start + MOST_RELEASED])
        except MusterError as error:
            _log.info("slots-not-released", slots=len(names), detail=error.detail)

    def work_of(self, rollout: RolloutOf, file: str) -> LeasedWork:
        """What a file of this task is submitted under. Called before the file is taken; any thread may.

        Args:
            rollout: The slot that the task names, and its units.
            file: The key under which it is handed over.

        Raises:
            NotFound: This task was leased no such slot.
            Conflict: The lease has expired, or another file was handed over under it.
            Unprocessable: There are more units than the lease allows.
        """
        with self._lock:
            held = self._held.get((rollout.step, rollout.index))
        if held is None:
            raise NotFound(
                f"this task has no lease of step {rollout.step}, index {rollout.index}",
                hint="name a slot that POST /v1/slots gave",
                code="no-lease",
            )
        if held.file not in {"", file}:
            raise Conflict(
                f"another file was handed over for step {rollout.step}, index {rollout.index}",
                hint="a slot is good for one file",
                code="slot-used",
            )
        if not held.file and held.lease.lease.expired(self._clock.now()):
            raise Conflict(
                f"the lease of step {rollout.step}, index {rollout.index} has expired",
                hint="lease another slot, and hand its file over in time",
                code="lease-expired",
            )
        if rollout.units > held.lease.max_units:
            raise Unprocessable(
                f"{rollout.units} units, where the lease allows {held.lease.max_units}", fields={"units": "too many"}
            )
        return LeasedWork(lease=held.lease, units=rollout.units, figures=rollout.figures)

    def handed_over(self, rollout: RolloutOf, file: str) -> None:
        """Remembers that the slot has its file; any thread may call."""
        with self._lock:
            held = self._held.get((rollout.step, rollout.index))
            if held is not None and not held.file:
                self._held[rollout.step, rollout.index] = replace(held, file=file)
                self._save()

    async def _asked(self, work: Callable[[RunService], Awaitable[T]]) -> T:
        service = self._service()
        if service is None:
            raise Unavailable(
                "this node has no orchestrator at the moment", hint="`muster worker status` says what it waits for"
            )
        return await work(service)

    def _check(self, lease: SignedLease, wish: SlotWish) -> None:
        """Whatever the orchestrator answers, the worker submits nothing under another's lease."""
        service = self._service()
        expected = (self._node, self._pool_id, self._domain, wish.step)
        if (lease.node, lease.pool_id, lease.domain, lease.step) != expected or lease.groups > wish.groups:
            raise BadAnswer(
                "the lease is not what was asked for", hint="the orchestrator's settings and the worker's may differ"
            )
        if service is None or lease.lease.signer(lease.raw_signature, self._domain) != service.address:
            raise BadAnswer("the lease is not signed by the pool's orchestrator", hint="tell the pool's owner")

    async def _check_payment(self, lease: Lease) -> None:
        """Takes no lease that the pool may not pay, and remembers it until the pool would pay it."""
        deadline = Deadline.after(CHAIN_PATIENCE, clock=self._clock)
        asking = retry(
            lambda: self._pay_fault_of(lease, self._clock.now()),
            clock=self._clock,
            backoff=_CHAIN_BACKOFF,
            deadline=deadline,
        )
        fault = await deadline.bound(asking, what="comparing the lease with the pool's escrow")
        self._unpayable = lease if fault else None
        if fault:
            self.trouble = f"a lease of step {lease.step} was refused: {fault}"
            _log.warning("lease-not-covered", step=lease.step, index=lease.index, why=fault)
            raise NotPaid(f"this worker takes no lease that may not be paid: {fault}", hint="it asks again by itself")

    async def _check_beacon(self, grant: SlotGrant) -> None:
        """Validators go by the chain, so the orchestrator's word for the seed does not count here either."""
        lease = grant.lease.lease
        deadline = Deadline.after(CHAIN_PATIENCE, clock=self._clock)
        asking = retry(
            lambda: self._fault_of(lease, grant.beacon),
            clock=self._clock,
            backoff=_CHAIN_BACKOFF,
            deadline=deadline,
        )
        fault = await deadline.bound(asking, what="comparing the lease with the chain")
        self.trouble = f"a lease of step {lease.step} was refused: {fault}" if fault else ""
        if fault:
            _log.error("false-grant", step=lease.step, index=lease.index, version=lease.version, why=fault)
            raise FalseGrant(f"the chain does not bear the lease of step {lease.step} out: {fault}")

    def _is_open(self, slot: SlotName) -> bool:
        with self._lock:
            held = self._held.get((slot.step, slot.index))
        return held is not None and not held.file

    def _restored(self) -> dict[tuple[int, int], _Held]:
        saved = self._state.read(_FILE)
        if saved is None or saved.get("assignment_id") != self._assignment_id:
            return {}
        try:
            held = [_read(each) for each in saved["held"]]
        except (KeyError, TypeError, ValidationError):  # another release wrote it: those leases expire
            return {}
        return {(each.lease.step, each.lease.index): each for each in held}

    def _save(self) -> None:
        now = self._clock.now()
        kept = [(name, held) for name, held in self._held.items() if not held.lease.lease.expired(now)]
        self._held = dict(kept[-MOST_REMEMBERED:])
        rows = [{"lease": held.lease.model_dump(mode="json"), "file": held.file} for held in self._held.values()]
        self._state.write(_FILE, {"assignment_id": self._assignment_id, "held": rows})


def _read(saved: dict[str, Any]) -> _Held:
    return _Held(lease=SignedLease.model_validate(saved["lease"]), file=str(saved["file"]))
