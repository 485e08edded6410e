"""Slots of the current task: leased from the orchestrator with the node's key and stored on disk.

A task can't supply a lease: it names a slot, and the worker attaches the lease that it obtained for this task.
"""

from __future__ import annotations

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
from protocol.runtime.randomness import token_hex
from protocol.runtime.retry import Backoff, Deadline, retry
from protocol.wire.leases import SignedLease
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import MOST_RELEASED, RolloutOf, SlotGrant, SlotName, SlotRequest, SlotWish
from worker.delivery.work_signing import LeasedWork
from worker.state import StateDirectory

T = TypeVar("T")

MOST_REMEMBERED = 256
STEP_CACHE_TTL = timedelta(milliseconds=500)
"""Cache time of the answer to `step`, because the orchestrator limits the rate of a node's requests and heartbeats."""
SLOT_RATE = Rate(count=60, per=timedelta(minutes=1), burst=16)
CHAIN_TIMEOUT = timedelta(seconds=5)
"""Time-out for comparing a lease with the chain. After it, the task's next request gets the same lease again."""

_CHAIN_BACKOFF = Backoff(attempts=20, most=timedelta(seconds=1))
_FILE = "leases"
_log = structlog.get_logger(__name__)


FaultOf = Callable[[Lease, Digest], Awaitable[str]]
"""Returns how a lease or its beacon contradicts the chain; empty if they agree."""

PayFaultOf = Callable[[Lease, datetime], Awaitable[str]]
"""Returns why work under a lease may not be paid, at the given time; empty if payment is covered."""


async def _covered(lease: Lease, now: datetime) -> str:  # noqa: ARG001 - a `PayFaultOf`
    return ""


class FalseGrant(BadAnswer):
    """The lease contradicts the chain; validators would judge work under it as forged."""

    code = "false-grant"
    default_hint = "the lease is not used: tell the pool's owner, and check that the RPC endpoint is synchronised"


class NotPaid(Unavailable):
    """Leasing has stopped because delivered work was not paid or the next work may not be."""

    code = "not-paid"
    default_hint = "ask the pool's owner; `muster worker resume` allows leasing again"


class RunService(Protocol):
    """The orchestrator's calls that slots need."""

    @property
    def address(self) -> Address:
        """The orchestrator's key, which must sign leases."""
        ...

    async def step(self) -> StepAnswer:
        """Returns the run's current step and policy version."""
        ...

    async def slot(self, request: SlotRequest) -> SlotGrant:
        """Leases a slot."""
        ...

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        """Releases slots."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeasedSlot:
    """A lease of this task, and the key of the file added under it (empty if none)."""

    lease: SignedLease
    file: str = ""


class TaskSlots:
    """Slots leased by one task.

    Args:
        assignment_id: The task's assignment; saved slots of an earlier one are discarded.
        node: This node's address.
        pool_id: Pool of this node.
        domain: EIP-712 domain of the `WorkLedger` contract.
        state: The worker's state directory, where leases are saved.
        service: Returns the orchestrator session; None while there is none.
        fault_of: Compares a lease with the chain.
        pay_fault_of: Compares a lease with the pool's escrow and notice period.
        stopped: Returns why leasing has stopped (`worker.delivery.pay_watch`); empty while it is allowed.
        clock: Used for expiry, rate limits and time-outs.
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
        """The last lease that the worker refused because the pool might not pay. The orchestrator counts it as
        undelivered, so the worker requests no other lease until the pool can pay this one."""
        self._stopped = stopped
        self._clock = clock
        self._rates = IpRates(SLOT_RATE, clock=clock)
        self._lock = threading.Lock()
        self._held = self._restored()
        self._step: tuple[float, StepAnswer] | None = None
        self._unanswered: tuple[SlotWish, str] | None = None
        self.trouble = ""
        """Why the last lease was refused; empty if it was accepted."""

    async def step(self) -> StepAnswer:
        """Returns the run's current step and policy version.

        Raises:
            Unavailable: There is no orchestrator, or it does not answer.
            NotFound: The pool has no run.
        """
        now = self._clock.monotonic()
        if self._step is not None and self._step[0] > now:
            return self._step[1]
        answer = await self._call(lambda service: service.step())
        self._step = (self._clock.monotonic() + STEP_CACHE_TTL.total_seconds(), answer)
        return answer

    async def lease(self, wish: SlotWish) -> SlotGrant:
        """Leases a slot for this task.

        Raises:
            Conflict: There is no slot for this node now; the error text tells why.
            RateLimited: The task requests slots too often.
            BadAnswer: The lease differs from the request or has a wrong signature.
            FalseGrant: The lease contradicts the chain.
            NotPaid: Leasing has stopped because work was not paid, or the pool may not pay for this lease.
            Unavailable: The orchestrator or the chain does not answer; an unverified lease is not used.
        """
        if unpaid := self._stopped():
            raise NotPaid(f"this worker has stopped leasing: {unpaid}")
        if self._unpayable is not None:
            await self._check_payment(self._unpayable)
        self._rates.admit("task")
        # Repeat a request whose answer was lost with the same id: the orchestrator then returns the same slot.
        known = self._unanswered
        request_id = known[1] if known is not None and known[0] == wish else token_hex(16)
        self._unanswered = (wish, request_id)
        request = SlotRequest(step=wish.step, groups=wish.groups, request_id=request_id)
        try:
            grant = await self._call(lambda service: service.slot(request))
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
            self._unanswered = (wish, request_id)  # request the same lease again: it may be valid
            raise
        with self._lock:
            self._held[grant.lease.step, grant.lease.index] = _LeasedSlot(lease=grant.lease)
            self._save()
        return grant

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        """Releases slots of this task for which no file was added; other slots are ignored."""
        mine = tuple(slot for slot in slots if self._is_open(slot))
        if not mine:
            return
        await self._call(lambda service: service.release(mine))
        with self._lock:
            for slot in mine:
                self._held.pop((slot.step, slot.index), None)
            self._save()

    async def release_unused(self) -> None:
        """Releases all unused slots; after an error, those not yet released expire."""
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
        """Returns the lease data for a file. Thread-safe; called before the file is added to the queue.

        Args:
            rollout: The slot named by the task, and the units of work.
            file: Key of the file.

        Raises:
            NotFound: This task has no lease for the slot.
            Conflict: The lease has expired or was used for another file.
            Unprocessable: The units exceed the lease's maximum.
        """
        with self._lock:
            held = self._held.get((rollout.step, rollout.index))
        if held is None:
            raise NotFound(
                f"this task has no lease of step {rollout.step}, index {rollout.index}",
                hint="name a slot that POST /v1/slots returned",
                code="no-lease",
            )
        if held.file not in {"", file}:
            raise Conflict(
                f"another file was added for step {rollout.step}, index {rollout.index}",
                hint="a slot takes one file",
                code="slot-used",
            )
        if not held.file and held.lease.lease.expired(self._clock.now()):
            raise Conflict(
                f"the lease of step {rollout.step}, index {rollout.index} has expired",
                hint="lease another slot, and add its file before the lease expires",
                code="lease-expired",
            )
        if rollout.units > held.lease.max_units:
            raise Unprocessable(
                f"the file claims {rollout.units} units, but its lease allows {held.lease.max_units}",
                fields={"units": "too many"},
            )
        return LeasedWork(lease=held.lease, units=rollout.units, figures=rollout.figures)

    def handed_over(self, rollout: RolloutOf, file: str) -> None:
        """Records that a file was added for the slot. Thread-safe."""
        with self._lock:
            held = self._held.get((rollout.step, rollout.index))
            if held is not None and not held.file:
                self._held[rollout.step, rollout.index] = replace(held, file=file)
                self._save()

    async def _call(self, work: Callable[[RunService], Awaitable[T]]) -> T:
        service = self._service()
        if service is None:
            raise Unavailable("this node has no orchestrator at the moment", hint="`muster worker status` shows why")
        return await work(service)

    def _check(self, lease: SignedLease, wish: SlotWish) -> None:
        """Checks that the lease is for this node and request and is signed by the orchestrator."""
        service = self._service()
        expected = (self._node, self._pool_id, self._domain, wish.step)
        if (lease.node, lease.pool_id, lease.domain, lease.step) != expected or lease.groups > wish.groups:
            raise BadAnswer(
                "the lease differs from the request", hint="the orchestrator's settings and the worker's may differ"
            )
        if service is None or lease.lease.signer(lease.raw_signature, self._domain) != service.address:
            raise BadAnswer("the lease is not signed by the pool's orchestrator", hint="tell the pool's owner")

    async def _check_payment(self, lease: Lease) -> None:
        """Refuses a lease that the pool might not pay, and keeps it in `_unpayable` until the pool can pay it."""
        deadline = Deadline.after(CHAIN_TIMEOUT, clock=self._clock)
        check = retry(
            lambda: self._pay_fault_of(lease, self._clock.now()),
            clock=self._clock,
            backoff=_CHAIN_BACKOFF,
            deadline=deadline,
        )
        fault = await deadline.bound(check, what="comparing the lease with the pool's escrow")
        self._unpayable = lease if fault else None
        if fault:
            self.trouble = f"a lease of step {lease.step} was refused: {fault}"
            _log.warning("lease-not-covered", step=lease.step, index=lease.index, why=fault)
            raise NotPaid(f"the pool might not pay for this lease: {fault}", hint="the next request checks it again")

    async def _check_beacon(self, grant: SlotGrant) -> None:
        """Checks the lease's beacon against the chain, as validators will, instead of trusting the orchestrator."""
        lease = grant.lease.lease
        deadline = Deadline.after(CHAIN_TIMEOUT, clock=self._clock)
        check = retry(
            lambda: self._fault_of(lease, grant.beacon),
            clock=self._clock,
            backoff=_CHAIN_BACKOFF,
            deadline=deadline,
        )
        fault = await deadline.bound(check, what="comparing the lease with the chain")
        self.trouble = f"a lease of step {lease.step} was refused: {fault}" if fault else ""
        if fault:
            _log.error("false-grant", step=lease.step, index=lease.index, version=lease.version, why=fault)
            raise FalseGrant(f"the lease of step {lease.step} contradicts the chain: {fault}")

    def _is_open(self, slot: SlotName) -> bool:
        with self._lock:
            held = self._held.get((slot.step, slot.index))
        return held is not None and not held.file

    def _restored(self) -> dict[tuple[int, int], _LeasedSlot]:
        saved = self._state.read(_FILE)
        if saved is None or saved.get("assignment_id") != self._assignment_id:
            return {}
        try:
            held = [_read(each) for each in saved["held"]]
        except (KeyError, TypeError, ValidationError):  # written by another release: let those leases expire
            return {}
        return {(each.lease.step, each.lease.index): each for each in held}

    def _save(self) -> None:
        now = self._clock.now()
        kept = [(name, held) for name, held in self._held.items() if not held.lease.lease.expired(now)]
        self._held = dict(kept[-MOST_REMEMBERED:])
        rows = [{"lease": held.lease.model_dump(mode="json"), "file": held.file} for held in self._held.values()]
        self._state.write(_FILE, {"assignment_id": self._assignment_id, "held": rows})


def _read(saved: dict[str, Any]) -> _LeasedSlot:
    return _LeasedSlot(lease=SignedLease.model_validate(saved["lease"]), file=str(saved["file"]))
