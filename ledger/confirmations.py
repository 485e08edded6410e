"""Whether a service waits for enough blocks before it believes an event; said once, when it starts."""

from __future__ import annotations

from typing import Final

import structlog

DEVELOPMENT_CHAINS: Final = frozenset({1337, 31337})
"""Ids that tools give to chains of one machine by default: geth, anvil, and the embedded one."""

_log = structlog.get_logger(__name__)


def is_unconfirmed(*, chain_id: int, confirmations: int) -> bool:
    """Whether events count before anything is built on them, on a chain whose newest blocks others may replace."""
    return confirmations == 0 and chain_id not in DEVELOPMENT_CHAINS


def warn_if_unconfirmed(*, chain_id: int, confirmations: int) -> None:
    """Says in words what may come of a service's setting.

    Args:
        chain_id: Of the deployment that the service was given.
        confirmations: Blocks on top of one before its events count.
    """
    if is_unconfirmed(chain_id=chain_id, confirmations=confirmations):
        _log.warning(
            "unconfirmed-events",
            chain_id=chain_id,
            confirmations=confirmations,
            why="an event counts as soon as its block is there, and a block that is replaced takes seeds, joinings and "
            "verdicts along",
            hint="set `confirmations` to what this chain needs, say 3: the same number in every service of the pool",
        )
