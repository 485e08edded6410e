"""Checks and queues submissions and joins for the relayer, so that invalid ones cost no gas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from orchestrator.chain.cached_pool import CachedPool
from orchestrator.relayer.strategies import OTHER_WORK, WorkStrategy
from orchestrator.storage import ObjectStore
from orchestrator.store.relayer import RelayedKind, RelayedTransaction, RelayerStore
from orchestrator.store.run_rows import SlotRow
from orchestrator.store.runs import RunStore
from protocol.errors import Conflict, Forbidden, MusterError, NotFound, RateLimited, Unprocessable
from protocol.identifiers import Address, Digest
from protocol.identity.keys import Key
from protocol.identity.signing import unix_ms
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Join
from protocol.runtime.clock import Clock
from protocol.runtime.tracing import Tracer
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import JoinReceipt, JoinRequest, ReceiptState, SubmissionReceipt, SubmissionRequest
from protocol.wire.uploads import ObjectKey

SIGN_AGAIN = "sign it with the key of the node that sends the request, as docs/protocol.md says under ledger signatures"

MAX_WAITING = 10_000
"""Maximum number of queued requests of one kind. The queue fills only during a long outage of the chain. Strangers
can't fill it, because every request needs a lease or an invite that this pool signed."""


_tracer = Tracer(__name__)


class RelayerService:
    """Checks and queues submissions and joins.

    Args:
        pool_id: The pool.
        store: The relayer's queue.
        objects: The pool's object store; a submission is accepted only if its file is there.
        pool: The pool's state on the ledger.
        key: The orchestrator's key, which signs leases and invites.
        invites: Signing domain of the contract that redeems invites.
        clock: Clock for expiry times.
    """

    def __init__(
        self,
        *,
        pool_id: int,
        store: RelayerStore,
        objects: ObjectStore,
        pool: CachedPool,
        key: Key,
        invites: SigningDomain,
        clock: Clock,
    ) -> None:
        self.store = store
        self._pool_id = pool_id
        self._objects = objects
        self._pool = pool
        self._key = key
        self._invites = invites
        self._clock = clock
        self.wakeup = asyncio.Event()
        """Set when a request was queued here, so that the relayer of this process starts a round at once."""

    # Submissions

    async def submit(
        self, node: Address, submission: SubmissionRequest, *, run: Digest, domain: SigningDomain, slots: RunStore
    ) -> SubmissionReceipt:
        """Checks and queues a submission; returns its receipt, also for a repeated request.

        Raises:
            Forbidden: The lease is for another node, pool, run or ledger, or was not signed by the pool.
            Unprocessable: The claim has more work units than the lease allows, or the node did not sign it.
            Conflict: The lease has expired; other work was submitted under it; or the work's file is not in the store.
            StorageUnavailable: The object store does not answer.
        """
        work, received = submission.work, self._clock.now()
        key = work.lease.lease.key.hash
        await self._check_lease(node, work, run=run, domain=domain)
        _check_work(node, work, domain)
        row = await slots.slot_of(key)
        if row is not None and row.slot.state.on_ledger:
            return on_ledger(row, work)
        known = await self.store.get(RelayedKind.WORK, key)
        if known is None and work.lease.lease.expired(self._clock.now()):
            raise Conflict(
                f"the lease of step {work.lease.step}, index {work.lease.index} has expired",
                hint="lease another slot",
                code="lease-expired",
            )
        if known is None:
            await self._check_file(node, work)
        queued, same = await self.put(RelayedKind.WORK, key, submission.model_dump_json())
        if not same and WorkStrategy.parse(queued).work != work:  # the same work may be submitted with other metrics
            raise Conflict(
                "other work was submitted under this lease before",
                hint="a lease accepts one file; the first one counts",
                code="other-work",
            )
        if known is None:  # only accepted work gives a span, once
            _tracer.record("submission", key, since=received, step=work.lease.step, units=work.units)
        return _receipt(key, queued)

    async def submission(self, node: Address, key: Digest, *, slots: RunStore) -> SubmissionReceipt:
        """Returns whether a node's work is queued, relayed or refused.

        Raises:
            NotFound: The work was not submitted here, or another node submitted it.
        """
        row = await slots.slot_of(key)
        if row is not None and row.node == node and row.slot.state.on_ledger:
            return SubmissionReceipt(key=key, state=ReceiptState.CARRIED, transaction=row.transaction or None)
        queued = await self.store.get(RelayedKind.WORK, key)
        if queued is None or WorkStrategy.parse(queued).work.lease.node != node:
            raise NotFound(f"this node submitted no work {key}", hint="submit the work with POST /v1/submissions")
        return _receipt(key, queued)

    async def _check_lease(self, node: Address, work: SignedWorkClaim, *, run: Digest, domain: SigningDomain) -> None:
        lease = work.lease
        errors = (
            (lease.node != node, f"the lease is for {lease.node}, and the request is from {node}"),
            (lease.pool_id != self._pool_id, f"the lease is of pool {lease.pool_id}, not of pool {self._pool_id}"),
            (lease.run != run, "the lease is of another run"),
            (lease.domain != domain, f"the lease is for contract {lease.contract} on chain {lease.chain_id}"),
        )
        for is_wrong, detail in errors:
            if is_wrong:
                raise Forbidden(
                    detail, hint="submit work of a lease that this pool signed for this node", code="foreign-lease"
                )
        signer = _signer(lambda: lease.lease.signer(lease.raw_signature, domain), "lease")
        await self._check_signed_by_pool(signer, "lease")

    async def _check_file(self, node: Address, work: SignedWorkClaim) -> None:
        """Refuses work whose file is not in the store.

        No validator could judge such work, so it would occupy its step and then expire without a penalty.
        """
        if await self._objects.head(ObjectKey(pool_id=self._pool_id, owner=node, sha256=work.sha256)) is None:
            raise Conflict(
                f"no file {work.sha256} of this node is in the pool's store",
                hint="upload the file first: POST /v1/uploads",
                code="no-file",
                retryable=True,
            )

    # Joins

    async def join(self, node: Address, joining: JoinRequest) -> JoinReceipt:
        """Checks and queues a node's join; returns its receipt, also for a repeated request.

        Raises:
            Forbidden: The invite is for another node or pool.
            Unprocessable: The node did not sign the acceptance.
            Conflict: The invite has expired.
        """
        invite = joining.invite
        errors = (
            (invite.node != node, f"the invite is for {invite.node}, and the request is from {node}"),
            (invite.pool_id != self._pool_id, f"the invite is of pool {invite.pool_id}, not of pool {self._pool_id}"),
            (invite.domain != self._invites, f"the invite is for contract {invite.contract}"),
        )
        for is_wrong, detail in errors:
            if is_wrong:
                raise Forbidden(
                    detail, hint="use the invite that this pool posted for this node", code="foreign-invite"
                )
        await self._check_signed_by_pool(_signer(invite.signer, "invite"), "invite")
        acceptance = Join(invite_hash=invite.invite.hash)
        raw = bytes.fromhex(joining.signature[2:])
        if _signer(lambda: acceptance.signer(raw, self._invites), "acceptance") != node:
            raise Unprocessable(
                "the acceptance is not signed by the node", fields={"signature": "another signer"}, hint=SIGN_AGAIN
            )
        if invite.invite.expired(self._clock.now()):
            raise Conflict("the invite has expired", hint="wait for the next invite", code="invite-expired")
        # The row's name contains the invite's nonce, because the node may get and accept another invite later.
        queued, _ = await self.put(RelayedKind.JOIN, f"{node}-{invite.nonce}", joining.model_dump_json())
        return JoinReceipt(state=queued.state, reason=queued.reason)

    # All kinds

    async def put(self, kind: RelayedKind, name: str, body: str) -> tuple[RelayedTransaction, bool]:
        """Queues a checked request unless its name was queued before.

        Returns:
            The queued row, and whether its body equals the body of this request.

        Raises:
            RateLimited: The queue is full.
        """
        if await self.store.waiting(kind) >= MAX_WAITING:
            raise RateLimited(
                f"{MAX_WAITING} transactions wait to be relayed already",
                retry_after=timedelta(seconds=30),
                hint="send the transaction to the ledger yourself, or try again later",
            )
        put = await self.store.put(kind, name, body, now_ms=unix_ms(self._clock.now()))
        self.wakeup.set()
        return put

    async def requeue(self, kind: RelayedKind, name: str) -> None:
        """Queues a relayed request again, after a reorg removed its transaction from the ledger."""
        if await self.store.requeue(kind, name, now_ms=unix_ms(self._clock.now())):
            self.wakeup.set()

    async def _check_signed_by_pool(self, signer: Address, document: str) -> None:
        # This orchestrator's own key is accepted without a read of the ledger.
        if signer != self._key.address and signer != (await self._pool.get()).orchestrator:
            raise Forbidden(
                f"the {document} was signed by {signer}, which is not the pool's orchestrator",
                hint=f"use the {document} that this pool's orchestrator gave to the node",
                code=f"foreign-{document}",
            )


def on_ledger(row: SlotRow, work: SignedWorkClaim) -> SubmissionReceipt:
    """Returns the receipt of a submission whose slot has work on the ledger already.

    The submission counts as relayed if that work is the same, and as refused otherwise.
    """
    if (row.sha256, row.units) == (work.sha256, work.units):
        return SubmissionReceipt(key=row.key, state=ReceiptState.CARRIED, transaction=row.transaction or None)
    return SubmissionReceipt(key=row.key, state=ReceiptState.REFUSED, reason=OTHER_WORK)


def _check_work(node: Address, work: SignedWorkClaim, domain: SigningDomain) -> None:
    if work.units > work.lease.max_units:
        raise Unprocessable(
            f"the work has {work.units} units, and the lease allows {work.lease.max_units}",
            fields={"units": "too many"},
            hint="generate at most as many tokens as the lease allows, and count them as docs/protocol.md says",
        )
    if _signer(lambda: work.work.signer(work.raw_signature, domain), "work") != node:
        raise Unprocessable(
            "the work is not signed by the node", fields={"signature": "another signer"}, hint=SIGN_AGAIN
        )


def _receipt(key: Digest, queued: RelayedTransaction) -> SubmissionReceipt:
    return SubmissionReceipt(key=key, state=queued.state, reason=queued.reason)


def _signer(recover: Callable[[], Address], document: str) -> Address:
    try:
        return recover()
    except MusterError as error:
        raise Unprocessable(f"the signature of the {document} is broken: {error.detail}", hint=SIGN_AGAIN) from error
