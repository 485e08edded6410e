"""Slots of the current task, which the worker leases with the node's key and saves on disk.

A task can't supply a lease itself. It names a slot, and the worker adds the lease that it obtained for this task.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from protocol.errors import Conflict, MusterError, NotFound, Unavailable, Unprocessable
from protocol.http.client import BadAnswer
from protocol.http.rates import IpRates, Rate
from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import token_hex
from protocol.runtime.retry import Backoff, Deadline, retry
from protocol.runtime.tracing import Tracer
from protocol.wire.leases import SignedLease
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import MOST_RELEASED, RolloutOf, SlotGrant, SlotName, SlotRequest, SlotWish
from worker.delivery.work_signing import LeasedWork
from worker.state import StateDirectory

T = TypeVar("T")

MOST_REMEMBERED = 256
"""Maximum number of leases that are kept per task."""
STEP_CACHE_TTL = timedelta(milliseconds=500)
"""Time for which the answer to `step` is cached. The orchestrator limits the rate of a node's requests and heartbeats
together.
"""
SLOT_RATE = Rate(count=60, per=timedelta(minutes=1), burst=16)
"""Rate limit of the task's requests for slots."""
CHAIN_TIMEOUT = timedelta(seconds=5)
"""Time limit for comparing a lease with the chain.

If the limit is exceeded, the task's next request gets the same lease again.
"""

_CHAIN_BACKOFF = Backoff(attempts=20, most=timedelta(seconds=1))
_FILE = "leases"
_log = get_logger(__name__)
_tracer = Tracer(__name__)


FaultOf = Callable[[Lease, Digest], Awaitable[str]]
"""Function that returns how a lease or its beacon contradicts the chain; empty if they agree."""

PayFaultOf = Callable[[Lease, datetime], Awaitable[str]]
"""Function that returns why work under a lease might not be paid at the given time; empty if the payment is certain."""


async def _covered(lease: Lease, now: datetime) -> str:  # noqa: ARG001 - has the signature of `PayFaultOf`
    return ""


class ContradictoryLease(BadAnswer):
    """The lease contradicts the chain.

    Validators would judge work under it as forged.
    """

    code = "false-grant"
    default_hint = "the lease is not used; tell the pool's owner, and check that the RPC endpoint is synchronised"


class NotPaid(Unavailable):
    """Leasing has stopped, because work was not paid or might not be paid."""

    code = "not-paid"
    default_hint = "ask the pool's owner; `muster worker resume` allows leasing again"


class RunService(Protocol):
    """The orchestrator's calls that leasing slots needs."""

    @property
    def address(self) -> Address:
        """Address of the orchestrator's key, which must sign leases."""
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
    """A lease of this task, and the key of the file that was added under it.

    The key is empty if no file was added.
    """

    lease: SignedLease
    file: str = ""
    since: datetime | None = None
    """Time of the lease, for the trace; None for a lease from before a restart of the worker."""


class TaskSlots:
    """The slots that are leased for one task.

    Args:
        assignment_id: Id of the task's assignment. Saved slots of an earlier assignment are discarded.
        node: This node's address.
        pool_id: Number of this node's pool.
        domain: EIP-712 domain of the `WorkLedger` contract.
        state: The worker's state directory, in which leases are saved.
        service: Function that returns the orchestrator session; None while there is none.
        fault_of: Function that compares a lease with the chain.
        pay_fault_of: Function that compares a lease with the pool's escrow and notice period.
        stopped: Function that returns why leasing has stopped (`worker.delivery.pay_watch`); empty while leasing is
            allowed.
        clock: Clock for expiry, rate limits and time-outs.
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
        """Last lease that the worker refused because the pool might not pay for it.

        The orchestrator counts this lease as undelivered. To lose no further leases, the worker requests no lease until
        the pool can pay for this lease.
        """
        self._stopped = stopped
        self._clock = clock
        self._rates = IpRates(SLOT_RATE, clock=clock)
        self._lock = threading.Lock()
        self._held = self._restored()
        self._step: tuple[float, StepAnswer] | None = None
        self._unanswered: tuple[SlotWish, str] | None = None
        self.last_error = ""
        """Reason why the last lease was refused; empty if it was accepted."""

    async def step(self) -> StepAnswer:
        """Returns the run's current step and policy version.

        Raises:
            Unavailable: There is no orchestrator session, or the orchestrator does not answer.
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
            Conflict: There is no slot for this node now. The error text gives the reason.
            RateLimited: The task requests slots too often.
            BadAnswer: The lease differs from the request or has a wrong signature.
            ContradictoryLease: The lease contradicts the chain.
            NotPaid: Leasing has stopped because work was not paid, or the pool might not pay for this lease.
            Unavailable: The orchestrator or the chain does not answer. A lease that could not be verified is not used.
        """
        if unpaid := self._stopped():
            raise NotPaid(f"this worker has stopped leasing: {unpaid}")
        if self._unpayable is not None:
            await self._check_payment(self._unpayable)
        self._rates.admit("task")
        # A request whose answer was lost is repeated with the same id, so that the orchestrator returns the same slot.
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
        except (ContradictoryLease, NotPaid):
            raise
        except Unavailable as error:
            self.last_error = f"a lease could not be compared with the chain: {error.detail}"
            self._unanswered = (wish, request_id)  # the next request gets the same lease again, which may be valid
            raise
        with self._lock:
            self._held[grant.lease.step, grant.lease.index] = _LeasedSlot(lease=grant.lease, since=self._clock.now())
            self._save()
        return grant

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        """Releases slots of this task for which no file was added.

        Other slots are ignored.
        """
        mine = tuple(slot for slot in slots if self._is_open(slot))
        if not mine:
            return
        await self._call(lambda service: service.release(mine))
        with self._lock:
            for slot in mine:
                self._held.pop((slot.step, slot.index), None)
            self._save()

    async def release_unused(self) -> None:
        """Releases all slots for which no file was added.

        If the orchestrator does not answer, the remaining leases expire.
        """
        now = self._clock.now()
        with self._lock:
            open_ = [held.lease for held in self._held.values() if not held.file and not held.lease.lease.expired(now)]
        names = tuple(SlotName(step=lease.step, index=lease.index) for lease in open_)
        try:
            for start in range(0, len(names), MOST_RELEASED):
                await self.release(names[start : start + MOST_RELEASED])
        except MusterError as error:
            _log.info("slots-not-released", slots=len(names), detail=error.detail)

    def lease_of(self, slot: SlotName) -> SignedLease:
        """Returns the lease of a slot that this task holds; the worker has verified it.

        Raises:
            NotFound: This task has no lease for the slot.
            Conflict: The lease has expired or was used.
        """
        return self._usable(slot.step, slot.index, file="").lease

    def work_of(self, rollout: RolloutOf, file: str) -> LeasedWork:
        """Returns the lease data for a file that the task adds.

        The bridge calls this method before it adds the file to the queue. The method is thread-safe.

        Args:
            rollout: Slot and number of work units, as the task names them.
            file: Idempotency key of the file.

        Raises:
            NotFound: This task has no lease for the slot.
            Conflict: The lease has expired or was used for another file.
            Unprocessable: The number of units exceeds the lease's maximum.
        """
        held = self._usable(rollout.step, rollout.index, file=file)
        if rollout.units > held.lease.max_units:
            raise Unprocessable(
                f"the file claims {rollout.units} units, but its lease allows {held.lease.max_units}",
                fields={"units": "too many"},
            )
        return LeasedWork(lease=held.lease, units=rollout.units, figures=rollout.figures)

    def _usable(self, step: int, index: int, *, file: str) -> _LeasedSlot:
        """Returns a slot to which the file may be added; see `work_of` for the errors."""
        with self._lock:
            held = self._held.get((step, index))
        if held is None:
            raise NotFound(
                f"this task has no lease for step {step}, index {index}",
                hint="name a slot that POST /v1/slots returned",
                code="no-lease",
            )
        if held.file not in {"", file}:
            raise Conflict(
                f"another file was added for step {step}, index {index}",
                hint="only one file can be added per slot",
                code="slot-used",
            )
        if not held.file and held.lease.lease.expired(self._clock.now()):
            raise Conflict(
                f"the lease for step {step}, index {index} has expired",
                hint="lease another slot, and add its file before the lease expires",
                code="lease-expired",
            )
        return held

    def handed_over(self, rollout: RolloutOf, file: str) -> None:
        """Records that a file was added for the slot.

        It is thread-safe.
        """
        with self._lock:
            held = self._held.get((rollout.step, rollout.index))
            if held is not None and not held.file:
                self._held[rollout.step, rollout.index] = replace(held, file=file)
                self._save()
                if held.since is not None:
                    lease = held.lease.lease
                    _tracer.record("generation", lease.key.hash, since=held.since, step=lease.step, units=rollout.units)

    async def _call(self, work: Callable[[RunService], Awaitable[T]]) -> T:
        service = self._service()
        if service is None:
            raise Unavailable(
                "this node is not connected to an orchestrator now", hint="`muster worker status` shows why"
            )
        return await work(service)

    def _check(self, lease: SignedLease, wish: SlotWish) -> None:
        """Checks that the lease fits the request and that the orchestrator signed it."""
        service = self._service()
        expected = (self._node, self._pool_id, self._domain, wish.step)
        if (lease.node, lease.pool_id, lease.domain, lease.step) != expected or lease.groups > wish.groups:
            raise BadAnswer(
                "the lease differs from the request", hint="compare the orchestrator's settings with the worker's"
            )
        if service is None or lease.lease.signer(lease.raw_signature, self._domain) != service.address:
            raise BadAnswer("the lease is not signed by the pool's orchestrator", hint="tell the pool's owner")

    async def _check_payment(self, lease: Lease) -> None:
        """Refuses a lease for which the pool might not pay.

        It keeps such a lease in `_unpayable` until the pool can pay for it.
        """
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
            self.last_error = f"a lease for step {lease.step} was refused: {fault}"
            _log.warning("lease-not-covered", step=lease.step, index=lease.index, why=fault)
            raise NotPaid(
                f"the pool might not pay for this lease: {fault}", hint="the next request checks this lease again"
            )

    async def _check_beacon(self, grant: SlotGrant) -> None:
        """Checks the lease's beacon against the chain, as validators will.

        The worker does not trust the orchestrator's statement alone.
        """
        lease = grant.lease.lease
        deadline = Deadline.after(CHAIN_TIMEOUT, clock=self._clock)
        check = retry(
            lambda: self._fault_of(lease, grant.beacon),
            clock=self._clock,
            backoff=_CHAIN_BACKOFF,
            deadline=deadline,
        )
        fault = await deadline.bound(check, what="comparing the lease with the chain")
        self.last_error = f"a lease for step {lease.step} was refused: {fault}" if fault else ""
        if fault:
            _log.error("false-grant", step=lease.step, index=lease.index, version=lease.version, why=fault)
            raise ContradictoryLease(f"the lease for step {lease.step} contradicts the chain: {fault}")

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
        except (KeyError, TypeError, ValidationError):  # another release wrote the file: these leases expire unused
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
