"""Warns at the start of a service that reads events without confirmations on a public chain."""

from __future__ import annotations

from typing import Final

from protocol.runtime.logs import get_logger

DEVELOPMENT_CHAINS: Final = frozenset({1337, 31337})
"""Default chain ids of local development chains: geth (1337), anvil and the embedded chain (31337)."""

_log = get_logger(__name__)


def is_unconfirmed(*, chain_id: int, confirmations: int) -> bool:
    """Returns whether events are read with 0 confirmations on a chain that is not a development chain."""
    return confirmations == 0 and chain_id not in DEVELOPMENT_CHAINS


def warn_if_unconfirmed(*, chain_id: int, confirmations: int) -> None:
    """Logs a warning if a reorg could undo events that the service has acted on.

    Args:
        chain_id: Chain id of the service's deployment.
        confirmations: Blocks that must stand on top of a block before its events are read.
    """
    if is_unconfirmed(chain_id=chain_id, confirmations=confirmations):
        _log.warning(
            "unconfirmed-events",
            chain_id=chain_id,
            confirmations=confirmations,
            why="the service acts on an event as soon as its block exists; a reorg that replaces the block also undoes "
            "its seeds, joins and verdicts",
            hint="set `confirmations` to what this chain needs, such as 3, and to the same number in every service",
        )
