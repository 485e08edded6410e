"""Leaves a pool through the orchestrator's relayer, which pays the gas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from protocol.clients.node import NodeClient
from protocol.errors import MusterError
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Leave
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.retry import Deadline
from protocol.wire.relayed import ReceiptState, SignedLeave

RELAYER_TIMEOUT = timedelta(seconds=60)
"""Time that the relayer gets. A worker that leaves ends after it."""
VALID = timedelta(minutes=30)
"""Time for which the signed leave is valid. It is longer than `RELAYER_TIMEOUT`, so that the relayer can still send the
leave after a short outage of the chain."""

_POLL_INTERVAL = timedelta(seconds=1)
_log = get_logger(__name__)


async def leave_by_relay(
    client: NodeClient,
    *,
    key: Key,
    pool_id: int,
    joins: int,
    domain: SigningDomain,
    is_member: Callable[[], Awaitable[bool]],
    clock: Clock,
) -> bool:
    """Leaves a pool through its relayer; returns whether the node is no member now.

    The result is False if the relayer refuses, fails or takes too long.

    Args:
        client: Client of the pool's orchestrator.
        key: The node's key.
        pool_id: The pool.
        joins: How often the node has joined the pool.
        domain: Signing domain of the contract that ends memberships.
        is_member: Function that reads the membership from the ledger. The relayer's answer alone is not trusted.
        clock: Clock that measures the time-out and pauses.
    """
    until = int((clock.now() + VALID).timestamp())
    signature = Leave(pool_id=pool_id, node=key.address, nonce=joins, deadline=until).sign(key, domain)
    leave = SignedLeave(
        pool_id=pool_id, node=key.address, nonce=joins, deadline=until, signature="0x" + signature.hex()
    )
    deadline = Deadline.after(RELAYER_TIMEOUT, clock=clock)
    try:
        while not deadline.passed:
            receipt = await client.leave(leave)
            if not await is_member():
                return True
            if receipt.state is ReceiptState.REFUSED:
                _log.warning("leave-not-carried", reason=receipt.reason)
                return False
            await clock.sleep(_POLL_INTERVAL)
    except MusterError as error:
        _log.warning("leave-not-carried", detail=error.detail, hint=error.hint)
        return False
    _log.warning("leave-not-carried", reason=f"not within {RELAYER_TIMEOUT}")
    return False
