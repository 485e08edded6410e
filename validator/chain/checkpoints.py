"""Finds the policy version of a submission, and the relays that serve it."""

from __future__ import annotations

from datetime import timedelta

from cachetools import LRUCache

from ledger.events.types import CheckpointAnnounced
from protocol.clients import OrchestratorClient
from protocol.errors import MusterError, NotFound
from protocol.identifiers import Address, Digest
from protocol.runtime.clock import Clock
from protocol.wire.runs import CheckpointRef
from validator.chain.connection import PoolChain
from validator.domain.submissions import SubmittedWork

MOST_KNOWN = 256
"""Maximum number of cached publishers."""
RELAYS_CACHED_FOR = timedelta(seconds=10)
"""Time for which the orchestrator's list of relays is cached."""


class CheckpointLookup:
    """Looks up versions and their publishers on the ledger, and relays at the orchestrator.

    Args:
        chain: Chain client of the validator's pool.
        orchestrator: Client of the orchestrator, which lists the relays of the newest version; these relays also serve
            older versions.
        relays: Relays from the settings; if the settings name relays, the orchestrator is not asked for relays.
        clock: Clock of the cache.
    """

    def __init__(
        self, chain: PoolChain, *, orchestrator: OrchestratorClient, relays: tuple[str, ...], clock: Clock
    ) -> None:
        self._chain = chain
        self._orchestrator = orchestrator
        self._own_relays = relays
        self._clock = clock
        self._publishers: LRUCache[tuple[Digest, int], Address] = LRUCache(MOST_KNOWN)
        self._relays: tuple[float, tuple[str, ...]] = (float("-inf"), ())

    async def of(self, work: SubmittedWork) -> CheckpointRef:
        """Returns the version that the work's lease names, with its publisher and relays.

        Raises:
            Unavailable: The chain or the orchestrator is down.
            UnknownCheckpoint: The ledger has no such version.
        """
        announced, publisher = await self._announced(work)
        return CheckpointRef(
            version=work.version,
            attempt=announced.attempt,
            digest=work.checkpoint,
            block=announced.log.block_number,
            publisher=publisher,
            relays=await self._known_relays(),
        )

    async def _announced(self, work: SubmittedWork) -> tuple[CheckpointAnnounced, Address]:
        """Returns the announcement of the work's version, and the publisher key in its block.

        The pool may have appointed another publisher key since that block. The announcement is read each time, because
        a reorg may remove it. The publisher is cached by block hash, because a past block's publisher never changes.
        """
        facts = (await self._chain.connected()).facts
        announced = await facts.announcement(work)
        place = (announced.log.block_hash, announced.log.index)
        if place not in self._publishers:
            self._publishers[place] = await facts.publisher_of(announced)
        return announced, self._publishers[place]

    async def _known_relays(self) -> tuple[str, ...]:
        if self._own_relays:
            return self._own_relays
        until, relays = self._relays
        if until > self._clock.monotonic():
            return relays
        try:
            newest = (await self._orchestrator.run()).checkpoint
        except NotFound:
            newest = None
        except MusterError:
            if not relays:
                raise
            return relays  # the orchestrator is down, but the relays that it listed last probably still serve
        if newest is not None:
            relays = newest.relays
        self._relays = (self._clock.monotonic() + RELAYS_CACHED_FOR.total_seconds(), relays)
        return relays
