"""What happens to files on their way: to the pool's store, and, if they are work, to the ledger.

    request       asks the orchestrator where to put the file
    put           sends it there, and asks again: the answer must be that it is there
    submit        signs the work and hands it to the orchestrator's relayer
    acknowledge   looks at the ledger until the work is there

A relayer that refuses, or does not carry it in time, is passed by: the node submits its work itself, if it has gas. The
ledger has the last word: work that is there with our hash is delivered, however it came there; work that can't come
there any more is given up. Everything else is tried again for as long as the lease lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from ledger.errors import TransactionReverted
from protocol.errors import MusterError, NotFound, Unavailable
from protocol.http.object_transfer import BytesRefused, ObjectTransfer, UrlStale
from protocol.identifiers import Digest, digest
from protocol.identity.keys import Key
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import ReceiptState, SubmissionReceipt
from protocol.wire.slots import SlotName
from protocol.wire.uploads import UploadKind, UploadRequest, UploadTicket
from worker.chain.ledger_chain import WorkerChain, why
from worker.delivery.pay_watch import PayWatch
from worker.delivery.queue.item import DeliveryStage, QueueItem
from worker.delivery.queue.runner import GivenUp, NotYet, StepBack
from worker.delivery.work_signing import LEASED_WORK, check_copy, leased, sign_work

RELAY_PATIENCE = timedelta(seconds=60)
"""How long the relayer may take, or half of what is left of the lease if that is less."""

NEARLY_OVER = timedelta(seconds=20)
"""A URL that ends so soon is not begun with."""

HOPELESS = frozenset({"LeaseExpired", "UnitsOutOfRange", "NodeNotWilling", "NotOrchestrator"})
"""The ledger's reasons that no waiting changes; others (a ban, an empty escrow) may pass while the lease lasts."""

_TICKET, _STORED, _HANDED_OVER = "ticket", "stored_ms", "handed_over_ms"
_log = structlog.get_logger(__name__)


class Undeliverable(Unavailable):
    """There is nowhere to deliver to at the moment."""

    code = "undeliverable"
    default_hint = "the file is kept, and tried again"


class PoolSide(Protocol):
    """The orchestrator's calls that delivery needs; `OrchestratorSession` implements them."""

    @property
    def time(self) -> Clock:
        """The orchestrator's time, as well as it is known."""
        ...

    async def request_upload(self, request: UploadRequest) -> UploadTicket:
        """Asks where to put a file."""
        ...

    async def submit_work(self, work: SignedWorkClaim, *, figures: Mapping[str, float]) -> SubmissionReceipt:
        """Hands work to the relayer."""
        ...

    async def submission(self, key: Digest) -> SubmissionReceipt:
        """How far the relayer is."""
        ...


class PoolDelivery:
    """Delivers to whatever pool the worker is a member of.

    Args:
        key: The node's: signs its work.
        pool_id: Only leases of this pool are worked under.
        chain: The ledger.
        clock: The machine's; while there is an orchestrator, its time counts.
        relay_patience: How long the relayer may take; never more than half of what is left of the lease.
        pay: Told of work that the ledger took or refused; None to watch nothing.
    """

    def __init__(
        self,
        *,
        key: Key,
        pool_id: int,
        chain: WorkerChain,
        clock: Clock,
        relay_patience: timedelta = RELAY_PATIENCE,
        pay: PayWatch | None = None,
    ) -> None:
        self._key = key
        self._pool_id = pool_id
        self._chain = chain
        self._clock = clock
        self._relay_patience = relay_patience
        self._pay = pay
        self._pool: PoolSide | None = None
        self._transfer: ObjectTransfer | None = None

    def connect(self, pool: PoolSide, transfer: ObjectTransfer) -> None:
        """From now on files go to this orchestrator and its store."""
        self._pool, self._transfer = pool, transfer

    async def disconnect(self) -> None:
        """There is no pool for now: files wait."""
        transfer, self._transfer, self._pool = self._transfer, None, None
        if transfer is not None:
            await transfer.aclose()

    async def request(self, item: QueueItem) -> Mapping[str, str]:
        """Asks where to put the file, unless its lease is over already."""
        work = self._work(item)
        if work is not None:
            await self._check_time(work)
        with _while_leased(work):
            ticket = await self._ask(item)
        return {_TICKET: ticket.model_dump_json()}

    async def put(self, item: QueueItem) -> Mapping[str, str]:
        """Sends the file, and makes sure that it came."""
        ticket, work = UploadTicket.model_validate_json(item.data[_TICKET]), self._work(item)
        if not ticket.already_there:
            if work is not None:
                await self._check_time(work)
            if ticket.expires_ms < unix_ms(self._now() + NEARLY_OVER):
                raise StepBack(DeliveryStage.HASHED, "the store's URL has expired")
            with _while_leased(work):
                await self._send(item, ticket)
        return {_STORED: str(unix_ms(self._now()))}

    async def _send(self, item: QueueItem, ticket: UploadTicket) -> None:
        _, transfer = self._connected()
        await asyncio.to_thread(check_copy, item, thoroughly=False)
        try:
            await transfer.put(ticket, item.path, size=item.size)
        except UrlStale as error:
            raise StepBack(DeliveryStage.HASHED, f"the store does not take its URL: {error.detail}") from error
        except BytesRefused as error:
            await asyncio.to_thread(check_copy, item, thoroughly=True)
            raise Undeliverable(f"the store got other bytes than were sent: {error.detail}") from error
        if not (await self._ask(item)).already_there:
            raise StepBack(DeliveryStage.HASHED, "the store took the file and does not have it")

    async def submit(self, item: QueueItem) -> Mapping[str, str]:
        """Hands work to the relayer; a file that is no work has nothing to submit.

        The relayer knows what it had before, so at first nobody asks the ledger.
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
            await self._carry(work, because=error.detail)
        else:
            if receipt.state is ReceiptState.REFUSED:
                await self._carry(work, because=receipt.reason)
        return {_HANDED_OVER: str(unix_ms(self._now()))}

    async def acknowledge(self, item: QueueItem) -> Mapping[str, str]:
        """Looks for the work on the ledger, and submits it there itself when the relayer has had its time."""
        work = self._work(item)
        if work is None:
            return {}
        await self._acknowledge(item, work)
        if self._pay is not None:
            self._pay.delivered(work.lease.lease)
        return {}

    async def _acknowledge(self, item: QueueItem, work: SignedWorkClaim) -> None:
        """Returns when the ledger has the work."""
        if await self._on_ledger(work):
            return
        await self._check_time(work)
        because = "it takes too long" if self._is_late(item, work) else await self._refused(work)
        if not because:
            raise NotYet("the relayer has it, the ledger not yet")
        try:
            await self._carry(work, because=because)
        except Undeliverable as error:
            raise StepBack(DeliveryStage.PUT, why(error)) from error  # to the relayer once more

    async def _refused(self, work: SignedWorkClaim) -> str:
        """Why the relayer does not carry it after all; empty if it may yet."""
        if self._pool is None:
            return ""
        try:
            receipt = await self._pool.submission(work.lease.lease.key.hash)
        except NotFound as error:
            raise StepBack(DeliveryStage.PUT, "the orchestrator has forgotten that it was handed over") from error
        except MusterError:
            return ""  # it is slow or down: the ledger decides, and time
        return (receipt.reason or "no reason given") if receipt.state is ReceiptState.REFUSED else ""

    async def _ask(self, item: QueueItem) -> UploadTicket:
        pool, _ = self._connected()
        is_work = LEASED_WORK in item.metadata
        lease = leased(item).lease if is_work else None
        return await pool.request_upload(
            UploadRequest(
                kind=UploadKind.ROLLOUT if is_work else UploadKind.FILE,
                sha256=digest(item.sha256),
                size=item.size,
                task_id=item.metadata.get("task_id"),
                slot=None if lease is None else SlotName(step=lease.step, index=lease.index),
            )
        )

    async def _carry(self, work: SignedWorkClaim, *, because: str) -> None:
        """Submits work without the relayer."""
        _log.warning("submitting-alone", step=work.lease.step, index=work.lease.index, because=because)
        self._refused_by_ledger(work, because)  # the relayer passes the ledger's reason on
        try:
            await self._chain.submit(work)
        except TransactionReverted as error:
            if await self._on_ledger(work):
                return  # it came there meanwhile
            self._refused_by_ledger(work, error.name)
            if error.name in HOPELESS:
                raise GivenUp(f"the ledger does not take it: {why(error)}") from error
            raise Undeliverable(f"the ledger does not take it now: {why(error)}") from error
        except MusterError as error:
            raise Undeliverable(
                f"the pool's relayer does not carry this work ({because}), and this node can't: {error.detail}",
                hint=f"send some of the chain's coin to {self._key.address} for gas; it is tried again while its "
                "lease lasts",
            ) from error

    def _refused_by_ledger(self, work: SignedWorkClaim, reason: str) -> None:
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
        """Work can't be submitted any more when its lease has ended by the chain's time, and only by that."""
        lease = work.lease.lease
        if not lease.expired(self._now()) or await self._on_ledger(work):
            return
        if lease.expired(await self._chain.now()):
            ended = datetime.fromtimestamp(min(lease.expiry, 2**37), UTC)
            raise GivenUp(
                f"its lease (step {lease.step}, index {lease.index}) ended at {ended:%Y-%m-%d %H:%M:%S} UTC, before it "
                "could be submitted"
            )

    def _is_late(self, item: QueueItem, work: SignedWorkClaim) -> bool:
        """Whether to wait for the relayer no longer."""
        now_ms, ends_ms, stored_ms = unix_ms(self._now()), work.lease.expiry * 1000, int(item.data[_STORED])
        since_ms = int(item.data.get(_HANDED_OVER) or stored_ms)
        patience_ms = min(self._relay_patience / timedelta(milliseconds=1), (ends_ms - since_ms) / 2)
        # Handed over anew, it has new time, but never the second half of what was left at first: it may forget again.
        return now_ms - since_ms > patience_ms or now_ms - stored_ms > (ends_ms - stored_ms) / 2

    def _work(self, item: QueueItem) -> SignedWorkClaim | None:
        return sign_work(item, key=self._key, pool_id=self._pool_id, domain=self._chain.work_domain)

    def _connected(self) -> tuple[PoolSide, ObjectTransfer]:
        if self._pool is None or self._transfer is None:
            raise Undeliverable("this worker is a member of no pool now")
        return self._pool, self._transfer

    def _now(self) -> datetime:
        return self._clock.now() if self._pool is None else self._pool.time.now()


@contextmanager
def _while_leased(work: SignedWorkClaim | None) -> Iterator[None]:
    """Refused work waits for no person: the refusal may be lifted while the lease lasts, and then it is over."""
    try:
        yield
    except MusterError as error:
        if work is None or error.retryable:
            raise
        raise Undeliverable(error.detail, hint=error.hint) from error
