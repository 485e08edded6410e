"""Delivers files to the pool's object store and, if they are work, to the ledger.

    request       requests a presigned URL from the orchestrator
    put           uploads the file and asks the orchestrator whether the store has it
    submit        signs a work claim and sends it to the orchestrator's relayer
    acknowledge   reads the ledger until the ledger has the work

If the relayer refuses the work or takes too long, the node submits the work itself, provided that its account can pay
the gas. The work is delivered when the ledger has it with the hash of this file, whichever account sent it. The worker
gives up work that the ledger can no longer accept. The worker retries after all other failures until the lease expires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ledger.errors import TransactionReverted
from protocol.errors import MusterError, NotFound, Unavailable
from protocol.http.object_transfer import BytesRefused, ObjectTransfer, UrlStale
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.runtime.tracing import Tracer
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import ReceiptState, SubmissionReceipt
from protocol.wire.slots import SlotName
from protocol.wire.uploads import UploadKind, UploadRequest, UploadTicket
from worker.chain.ledger_chain import LedgerChain, describe_error
from worker.delivery.pay_watch import PayWatch
from worker.delivery.queue.item import DeliveryStage, QueueItem
from worker.delivery.queue.runner import GivenUp, NotYet, StepBack
from worker.delivery.work_signing import LEASED_WORK, check_copy, leased, sign_work

RELAYER_TIMEOUT = timedelta(seconds=60)
"""Maximum time that the relayer gets to submit work; never more than half of the lease's remaining time."""

URL_MARGIN = timedelta(seconds=20)
"""Minimum time that a presigned URL must still be valid when an upload starts."""

PERMANENT_REFUSALS = frozenset({"LeaseExpired", "UnitsOutOfRange", "NodeNotWilling", "NotOrchestrator"})
"""Contract errors that are permanent.

The causes of other errors, such as a ban or an empty escrow, may end before the lease expires.
"""

_TICKET, _STORED, _HANDED_OVER = "ticket", "stored_ms", "handed_over_ms"
_log = get_logger(__name__)
_tracer = Tracer(__name__)


class Undeliverable(Unavailable):
    """The file can't be delivered now; the worker tries again."""

    code = "undeliverable"
    default_hint = "the worker keeps the file and retries"


class PoolSide(Protocol):
    """The orchestrator's calls that delivery needs.

    `OrchestratorSession` implements them.
    """

    @property
    def time(self) -> Clock:
        """Clock that follows the orchestrator's time."""
        ...

    async def request_upload(self, request: UploadRequest) -> UploadTicket:
        """Requests a presigned URL for a file."""
        ...

    async def submit_work(self, work: SignedWorkClaim, *, figures: Mapping[str, float]) -> SubmissionReceipt:
        """Sends work to the relayer; returns the relayer's progress."""
        ...

    async def submission(self, key: Digest) -> SubmissionReceipt:
        """Returns the relayer's progress with submitted work."""
        ...


class PoolDelivery:
    """Delivers files to the pool of which the node is a member.

    Args:
        key: The node's key, which signs work claims.
        pool_id: Number of the pool. Leases from other pools are refused.
        chain: The ledger.
        clock: The machine's clock, used while no orchestrator is connected.
        relayer_timeout: Maximum time for the relayer; never more than half of the lease's remaining time.
        pay: Payment watch, which is told of work that the ledger accepted or refused; None for no watch.
    """

    def __init__(
        self,
        *,
        key: Key,
        pool_id: int,
        chain: LedgerChain,
        clock: Clock,
        relayer_timeout: timedelta = RELAYER_TIMEOUT,
        pay: PayWatch | None = None,
    ) -> None:
        self._key = key
        self._pool_id = pool_id
        self._chain = chain
        self._clock = clock
        self._relayer_timeout = relayer_timeout
        self._pay = pay
        self._pool: PoolSide | None = None
        self._transfer: ObjectTransfer | None = None

    def connect(self, pool: PoolSide, transfer: ObjectTransfer) -> None:
        """Sets the orchestrator and the object store to which files are delivered."""
        self._pool, self._transfer = pool, transfer

    async def disconnect(self) -> None:
        """Disconnects from orchestrator and object store.

        Files wait until the next `connect`.
        """
        transfer, self._transfer, self._pool = self._transfer, None, None
        if transfer is not None:
            await transfer.aclose()

    async def request(self, item: QueueItem) -> Mapping[str, str]:
        """Requests a presigned URL for the file.

        The worker instead gives up work whose lease has expired.
        """
        work = self._work(item)
        if work is not None:
            await self._check_time(work)
        with _while_leased(work):
            ticket = await self._request_ticket(item)
        return {_TICKET: ticket.model_dump_json()}

    async def put(self, item: QueueItem) -> Mapping[str, str]:
        """Uploads the file and checks that the object store has it."""
        ticket, work = UploadTicket.model_validate_json(item.data[_TICKET]), self._work(item)
        if not ticket.already_there:
            if work is not None:
                await self._check_time(work)
            if ticket.expires_ms < unix_ms(self._now() + URL_MARGIN):
                raise StepBack(DeliveryStage.HASHED, "the presigned URL has expired")
            works = () if work is None else (work.lease.lease.key.hash,)
            with _while_leased(work), _tracer.span("upload", *works, bytes=item.size):
                await self._send(item, ticket)
        return {_STORED: str(unix_ms(self._now()))}

    async def _send(self, item: QueueItem, ticket: UploadTicket) -> None:
        _, transfer = self._connected()
        await run_in_thread(check_copy, item, thoroughly=False)
        try:
            await transfer.put(ticket, item.path, size=item.size)
        except UrlStale as error:
            raise StepBack(
                DeliveryStage.HASHED, f"the object store refuses the presigned URL: {error.detail}"
            ) from error
        except BytesRefused as error:
            await run_in_thread(check_copy, item, thoroughly=True)
            raise Undeliverable(
                f"the object store received other bytes than the worker sent: {error.detail}"
            ) from error
        if not (await self._request_ticket(item)).already_there:
            raise StepBack(DeliveryStage.HASHED, "the object store accepted the file but does not have it")

    async def submit(self, item: QueueItem) -> Mapping[str, str]:
        """Sends work to the relayer.

        This method does nothing for a file that is not work.

        The ledger is read only on a retry, to save requests. Work that the ledger has already does no harm, because the
        relayer recognises it.
        """
        work = self._work(item)
        if work is None or (item.attempts and await self._on_ledger(work)):
            return {}
        await self._check_time(work)
        try:
            pool, _ = self._connected()
            receipt = await pool.submit_work(work, figures=leased(item).figures)
        except MusterError as error:
            if error.retryable and not self._is_late(item, work):
                raise
            await self._submit_directly(work, because=error.detail)
        else:
            if receipt.state is ReceiptState.REFUSED:
                await self._submit_directly(work, because=receipt.reason)
        return {_HANDED_OVER: str(unix_ms(self._now()))}

    async def acknowledge(self, item: QueueItem) -> Mapping[str, str]:
        """Checks that the work is on the ledger.

        If the relayer has refused the work or exceeded its time, the node submits the work itself.
        """
        work = self._work(item)
        if work is None:
            return {}
        await self._acknowledge(item, work)
        if self._pay is not None:
            self._pay.delivered(work.lease.lease)
        return {}

    async def _acknowledge(self, item: QueueItem, work: SignedWorkClaim) -> None:
        """Returns if the ledger has the work.

        The method raises `NotYet` while the relayer still has time.
        """
        if await self._on_ledger(work):
            return
        await self._check_time(work)
        because = "the relayer takes too long" if self._is_late(item, work) else await self._refused(work)
        if not because:
            raise NotYet("the relayer has the work, but the ledger does not have it yet")
        try:
            await self._submit_directly(work, because=because)
        except Undeliverable as error:
            raise StepBack(DeliveryStage.PUT, describe_error(error)) from error  # repeats the submission to the relayer

    async def _refused(self, work: SignedWorkClaim) -> str:
        """Returns why the relayer refused the work.

        The text is empty while the relayer may still submit the work.
        """
        if self._pool is None:
            return ""
        try:
            receipt = await self._pool.submission(work.lease.lease.key.hash)
        except NotFound as error:
            raise StepBack(DeliveryStage.PUT, "the orchestrator no longer knows this submission") from error
        except MusterError:
            return ""  # the orchestrator is slow or down: wait for the ledger or the time-out
        return (receipt.reason or "no reason given") if receipt.state is ReceiptState.REFUSED else ""

    async def _request_ticket(self, item: QueueItem) -> UploadTicket:
        pool, _ = self._connected()
        is_work = LEASED_WORK in item.metadata
        lease = leased(item).lease if is_work else None
        return await pool.request_upload(
            UploadRequest(
                kind=UploadKind.ROLLOUT if is_work else UploadKind.FILE,
                sha256=item.known_sha256,
                size=item.size,
                task_id=item.metadata.get("task_id"),
                slot=None if lease is None else SlotName(step=lease.step, index=lease.index),
            )
        )

    async def _submit_directly(self, work: SignedWorkClaim, *, because: str) -> None:
        """Submits work from the node's own account, which pays the gas."""
        _log.warning("submitting-alone", step=work.lease.step, index=work.lease.index, because=because)
        self._notify_refusal(work, because)  # the relayer's reason may be a contract error
        try:
            await self._chain.submit(work)
        except TransactionReverted as error:
            if await self._on_ledger(work):
                return  # the relayer submitted the work meanwhile
            self._notify_refusal(work, error.name)
            if error.name in PERMANENT_REFUSALS:
                raise GivenUp(f"the ledger refuses the work: {describe_error(error)}") from error
            raise Undeliverable(f"the ledger refuses the work for now: {describe_error(error)}") from error
        except MusterError as error:
            raise Undeliverable(
                f"the pool's relayer did not submit this work ({because}), and this node can't either: {error.detail}",
                hint=f"send some of the chain's coin to {self._key.address} for gas; the worker tries again until "
                "the lease expires",
            ) from error

    def _notify_refusal(self, work: SignedWorkClaim, reason: str) -> None:
        if self._pay is not None:
            self._pay.refused(work.lease.lease, reason)

    async def _on_ledger(self, work: SignedWorkClaim) -> bool:
        found = await self._chain.work(work.lease.lease.key)
        if found is None:
            return False
        if found.sha256 != work.sha256:
            raise GivenUp(f"another file of this node ({found.sha256}) was submitted under the same lease before")
        return True

    async def _check_time(self, work: SignedWorkClaim) -> None:
        """Gives up work whose lease has expired by the chain's time.

        The contract uses the chain's time. The worker reads it only if the lease has expired by the worker's own clock.
        """
        lease = work.lease.lease
        if not lease.expired(self._now()) or await self._on_ledger(work):
            return
        if lease.expired(await self._chain.now()):
            ended = datetime.fromtimestamp(min(lease.expiry, 2**37), UTC)
            raise GivenUp(
                f"its lease (step {lease.step}, index {lease.index}) expired at {ended:%Y-%m-%d %H:%M:%S} UTC, "
                "before the ledger had the work"
            )

    def _is_late(self, item: QueueItem, work: SignedWorkClaim) -> bool:
        """Returns whether the relayer has used up its time for this work."""
        now_ms, ends_ms, stored_ms = unix_ms(self._now()), work.lease.expiry * 1000, int(item.data[_STORED])
        since_ms = int(item.data.get(_HANDED_OVER) or stored_ms)
        timeout_ms = min(self._relayer_timeout / timedelta(milliseconds=1), (ends_ms - since_ms) / 2)
        # A repeated submission to the relayer restarts the time-out. The second condition limits all submissions
        # together to half of the time between upload and expiry: a relayer that keeps losing work must not use up the
        # lease.
        return now_ms - since_ms > timeout_ms or now_ms - stored_ms > (ends_ms - stored_ms) / 2

    def _work(self, item: QueueItem) -> SignedWorkClaim | None:
        return sign_work(item, key=self._key, pool_id=self._pool_id, domain=self._chain.work_domain)

    def _connected(self) -> tuple[PoolSide, ObjectTransfer]:
        if self._pool is None or self._transfer is None:
            raise Undeliverable("this node is currently not a member of a pool")
        return self._pool, self._transfer

    def _now(self) -> datetime:
        return self._clock.now() if self._pool is None else self._pool.time.now()


@contextmanager
def _while_leased(work: SignedWorkClaim | None) -> Iterator[None]:
    """Makes each error retryable, if the item has a work claim.

    Otherwise the item would be parked for a person, and the lease would expire before a person acts.
    """
    try:
        yield
    except MusterError as error:
        if work is None or error.retryable:
            raise
        raise Undeliverable(error.detail, hint=error.hint) from error
