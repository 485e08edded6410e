"""Checks and queues leaves, so that a node without gas can leave the pool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from orchestrator.chain.run_interface import expiry_of
from orchestrator.relayer.submissions import RelayerService
from orchestrator.store.relayer import RelayedKind
from protocol.errors import Conflict, Forbidden, MusterError, RateLimited, Unprocessable
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Leave
from protocol.runtime.clock import DAY_MS
from protocol.wire.relayed import LeaveReceipt, ReceiptState, SignedLeave

MAX_VALIDITY = timedelta(days=1)
"""Longest time for which a signed leave may be valid. It limits how late the relayer can send the leave."""
MAX_PER_DAY = 4
"""Maximum number of leaves that the relayer takes from one node per day (UTC)."""


async def take_leave(
    sender: Address,
    leave: SignedLeave,
    *,
    pool_id: int,
    relayer: RelayerService,
    is_member: Callable[[], Awaitable[bool]],
    on_ledger: Callable[[], Awaitable[bool]],
    joins: Callable[[], Awaitable[int]],
    domain: SigningDomain,
    now: datetime,
) -> LeaveReceipt:
    """Checks and queues a node's leave; returns its receipt, also for a repeated request.

    The checks that need no other service come first. The ledger is read for members only, so that a stranger can
    cause neither reads nor transactions.

    Args:
        sender: The node that sent the request.
        leave: The signed leave.
        pool_id: The pool.
        relayer: Queues the leave.
        is_member: Returns whether the node is a member of the pool, from the ledger's events if possible.
        on_ledger: Reads from the ledger whether the node is a member.
        joins: Reads from the ledger how often the node has joined the pool.
        domain: Signing domain of the contract that ends memberships.
        now: The current time.

    Raises:
        Forbidden: The leave is of another node or pool.
        Unprocessable: The node did not sign the leave; or its nonce or deadline is wrong.
        Conflict: The node is not a member.
        RateLimited: The node has sent `MAX_PER_DAY` leaves today.
    """
    _check(sender, leave, pool_id=pool_id, domain=domain, now=now)
    name = f"{leave.node}-{leave.nonce}"
    known = await relayer.store.get(RelayedKind.LEAVE, name)
    if known is not None and known.state is not ReceiptState.REFUSED:
        # After a reorg, the node is a member again although its leave was relayed.
        undone = known.state is ReceiptState.CARRIED and await is_member() and await on_ledger()
        if undone and await joins() == leave.nonce:
            await relayer.requeue(RelayedKind.LEAVE, name)
            return LeaveReceipt(state=ReceiptState.QUEUED)
        return LeaveReceipt(state=known.state, reason=known.reason)
    if not await is_member():
        raise Conflict(
            f"{leave.node} is not a member of pool {pool_id}", hint="there is nothing to leave", code="not-member"
        )
    joined = await joins()
    if leave.nonce != joined:
        raise Unprocessable(
            f"the leave has the nonce {leave.nonce}, and the node has joined {joined} times",
            fields={"nonce": f"it must be {joined}"},
            hint="read `joins` of `ComputePools.membershipOf`, and sign again",
        )
    now_ms = unix_ms(now)
    if await relayer.store.count_today(RelayedKind.LEAVE, leave.node, now_ms=now_ms) > MAX_PER_DAY:
        raise RateLimited(
            f"the relayer takes at most {MAX_PER_DAY} leaves of one node per day",
            retry_after=timedelta(milliseconds=DAY_MS - now_ms % DAY_MS),
            hint="call `ComputePools.leavePool` from the node's or its provider's account",
        )
    queued, _ = await relayer.put(RelayedKind.LEAVE, name, leave.model_dump_json())
    return LeaveReceipt(state=queued.state, reason=queued.reason)


def _check(sender: Address, leave: SignedLeave, *, pool_id: int, domain: SigningDomain, now: datetime) -> None:
    errors = (
        (leave.node != sender, f"the leave is of {leave.node}, and the request is from {sender}"),
        (leave.pool_id != pool_id, f"the leave is from pool {leave.pool_id}, not from pool {pool_id}"),
    )
    for is_wrong, detail in errors:
        if is_wrong:
            raise Forbidden(detail, hint="a node sends its own leave to its pool", code="foreign-leave")
    until = expiry_of(leave)
    if not now < until <= now + MAX_VALIDITY:
        raise Unprocessable(
            f"the leave is valid until {until:%Y-%m-%d %H:%M:%S} UTC, and the time is {now:%Y-%m-%d %H:%M:%S}",
            fields={"deadline": "it must be in the future, at most one day ahead"},
            hint="check the clock of the machine that signs, and sign again",
        )
    try:
        signed = Leave(pool_id=leave.pool_id, node=leave.node, nonce=leave.nonce, deadline=leave.deadline)
        signer = signed.signer(bytes.fromhex(leave.signature[2:]), domain)
    except MusterError as error:
        raise Unprocessable(
            f"the signature of the leave is broken: {error.detail}",
            hint="sign the EIP-712 struct of docs/protocol.md with the node's key (65 bytes)",
        ) from error
    if signer != leave.node:
        raise Unprocessable(
            "the leave is not signed by the node",
            fields={"signature": "another signer"},
            hint="sign it with the node's key",
        )
