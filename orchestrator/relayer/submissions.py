"""Accepts work submissions and joins from nodes for the relayer; checks them before they cost gas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from orchestrator.chain.cached_pool import CachedPool
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
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import JoinReceipt, JoinRequest, ReceiptState, SubmissionReceipt, SubmissionRequest
from protocol.wire.uploads import ObjectKey

MAX_WAITING = 10_000
"""Queued transactions of one kind. Leases and invites are limited by us, so only a long chain outage reaches it."""


class RelayerService:
    """Checks and queues submissions and joins.

    Args:
        pool_id: The pool.
        store: The relayer's queue.
        objects: The pool's object store: only work whose file is there is queued.
        pool: The pool's state on the ledger.
        key: The orchestrator's key, which signs leases and invites.
        invites: EIP-712 domain of the contract that accepts invites.
        clock: Clock of expiries.
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
        self.news = asyncio.Event()
        """Set when a transaction was queued here; it wakes the relayer of this process."""

    # Work

    async def submit(
        self, node: Address, submission: SubmissionRequest, *, run: Digest, domain: SigningDomain, slots: RunStore
    ) -> SubmissionReceipt:
        """Queues work, unless it was queued before; returns its state.

        Raises:
            Forbidden: The lease is for another node, pool, run or contract, or not signed by the pool's orchestrator.
            Unprocessable: The units exceed the lease, or the work is not signed by the node.
            Conflict: The lease has expired, other work was submitted under it, or its file is not in the store.
            StorageUnavailable: The store can't be asked for the file now.
        """
        work = submission.work
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
                hint="its slot is gone: ask for another lease",
                code="lease-expired",
            )
        if known is None:
            await self._check_file(node, work)
        queued, same = await self.put(RelayedKind.WORK, key, submission.model_dump_json())
        if not same and not _same_work(queued, work):
            raise Conflict(
                "other work was submitted under this lease before",
                hint="a lease is valid for one file; the first one counts",
                code="other-work",
            )
        return _receipt(key, queued)

    async def submission(self, node: Address, key: Digest, *, slots: RunStore) -> SubmissionReceipt:
        """Returns the relayer's state of a node's work.

        Raises:
            NotFound: It was not submitted here, or another node submitted it.
        """
        row = await slots.slot_of(key)
        if row is not None and row.node == node and row.slot.state.on_ledger:
            return SubmissionReceipt(key=key, state=ReceiptState.CARRIED, transaction=row.transaction or None)
        queued = await self.store.get(RelayedKind.WORK, key)
        if queued is None or _queued_work(queued).lease.node != node:
            raise NotFound(f"this node submitted no work {key}", hint="submit it with POST /v1/submissions")
        return _receipt(key, queued)

    async def _check_lease(self, node: Address, work: SignedWorkClaim, *, run: Digest, domain: SigningDomain) -> None:
        lease = work.lease
        wrong = (
            (lease.node != node, f"the lease is for {lease.node}, and the request is from {node}"),
            (lease.pool_id != self._pool_id, f"the lease is of pool {lease.pool_id}, not of pool {self._pool_id}"),
            (lease.run != run, "the lease is of another run"),
            (lease.domain != domain, f"the lease is for contract {lease.contract} on chain {lease.chain_id}"),
        )
        for is_wrong, reason in wrong:
            if is_wrong:
                raise Forbidden(reason, hint="submit work that this pool leased to this node", code="foreign-lease")
        signer = _signer(lambda: lease.lease.signer(lease.raw_signature, domain), "lease")
        await self._check_ours(signer, "lease")

    async def _check_file(self, node: Address, work: SignedWorkClaim) -> None:
        """Refuses work whose file is not in the store: no validator could judge it, so bad work would go unpunished."""
        if await self._objects.head(ObjectKey(pool_id=self._pool_id, owner=node, sha256=work.sha256)) is None:
            raise Conflict(
                f"no file {work.sha256} of this node is in the pool's store",
                hint="upload it first: POST /v1/uploads",
                code="no-file",
                retryable=True,
            )

    # Joins

    async def join(self, node: Address, joining: JoinRequest) -> JoinReceipt:
        """Queues a node's acceptance of an invite, unless it was queued before; returns its state.

        Raises:
            Forbidden: The invite is for another node, or not of this pool.
            Unprocessable: The acceptance is not signed by the node.
            Conflict: The invite has expired.
        """
        invite = joining.invite
        wrong = (
            (invite.node != node, f"the invite is for {invite.node}, and the request is from {node}"),
            (invite.pool_id != self._pool_id, f"the invite is of pool {invite.pool_id}, not of pool {self._pool_id}"),
            (invite.domain != self._invites, f"the invite is for contract {invite.contract}"),
        )
        for is_wrong, reason in wrong:
            if is_wrong:
                raise Forbidden(
                    reason, hint="accept the invite that this pool posted for this node", code="foreign-invite"
                )
        await self._check_ours(_signer(invite.signer, "invite"), "invite")
        joined = Join(invite_hash=invite.invite.hash)
        raw = bytes.fromhex(joining.signature[2:])
        if _signer(lambda: joined.signer(raw, self._invites), "acceptance") != node:
            raise Unprocessable("the acceptance is not signed by the node", fields={"signature": "another signer"})
        if invite.invite.expired(self._clock.now()):
            raise Conflict("the invite has expired", hint="wait for the next one", code="invite-expired")
        # The nonce is part of the name: a later invite of the same node is another transaction.
        queued, _ = await self.put(RelayedKind.JOIN, f"{node}-{invite.nonce}", joining.model_dump_json())
        return JoinReceipt(state=queued.state, reason=queued.reason)

    # All

    async def put(self, kind: RelayedKind, name: str, body: str) -> tuple[RelayedTransaction, bool]:
        """Queues a checked transaction, unless it was queued before.

        Returns:
            The row of the queue, and whether its body is the same as this one.

        Raises:
            RateLimited: The queue is full.
        """
        if await self.store.waiting(kind) >= MAX_WAITING:
            raise RateLimited(
                f"{MAX_WAITING} transactions are waiting already",
                retry_after=timedelta(seconds=30),
                hint="send the transaction yourself, or try again later",
            )
        put = await self.store.put(kind, name, body, now_ms=unix_ms(self._clock.now()))
        self.news.set()
        return put

    async def _check_ours(self, signer: Address, what: str) -> None:
        if signer != self._key.address and signer != (await self._pool.get()).orchestrator:
            raise Forbidden(
                f"the {what} was signed by {signer}, which is not the pool's orchestrator", code=f"foreign-{what}"
            )


def on_ledger(row: SlotRow, work: SignedWorkClaim) -> SubmissionReceipt:
    """Returns the receipt of work whose slot is on the ledger, with this or other work."""
    if (row.sha256, row.units) == (work.sha256, work.units):
        return SubmissionReceipt(key=row.key, state=ReceiptState.CARRIED, transaction=row.transaction or None)
    return SubmissionReceipt(
        key=row.key, state=ReceiptState.REFUSED, reason="the ledger has other work under this lease"
    )


def _check_work(node: Address, work: SignedWorkClaim, domain: SigningDomain) -> None:
    if work.units > work.lease.max_units:
        raise Unprocessable(
            f"{work.units} units, where the lease allows {work.lease.max_units}", fields={"units": "too many"}
        )
    if _signer(lambda: work.work.signer(work.raw_signature, domain), "work") != node:
        raise Unprocessable("the work is not signed by the node", fields={"signature": "another signer"})


def _same_work(queued: RelayedTransaction, work: SignedWorkClaim) -> bool:
    """Returns whether the queued work is the same; its metrics, which don't go to the ledger, may differ."""
    return _queued_work(queued) == work


def _queued_work(queued: RelayedTransaction) -> SignedWorkClaim:
    return SubmissionRequest.model_validate_json(queued.body).work


def _receipt(key: Digest, queued: RelayedTransaction) -> SubmissionReceipt:
    return SubmissionReceipt(key=key, state=queued.state, reason=queued.reason)


def _signer(recover: Callable[[], Address], what: str) -> Address:
    try:
        return recover()
    except MusterError as error:
        raise Unprocessable(f"the signature of the {what} is broken: {error.detail}") from error
