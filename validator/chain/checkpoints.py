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
RELAYS_GOOD_FOR = timedelta(seconds=10)


class Checkpoints:
    """Looks up digests and publisher on the ledger, and relays at the orchestrator.

    Args:
        chain: The ledger.
        orchestrator: Lists the relays of the newest version, which also serve older ones.
        relays: Relays from the settings; they take precedence.
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
        """Returns the version that the work's lease names.

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
        """Returns the announcement, and the publisher key at its block; the key may have been rotated since.

        The announcement is read each time, because a reorg may remove it. The publisher is cached by block hash: for
        one block it never changes.
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
            return relays  # the orchestrator is down; the relays of the last answer probably still serve
        if newest is not None:
            relays = newest.relays
        self._relays = (self._clock.monotonic() + RELAYS_GOOD_FOR.total_seconds(), relays)
        return relays
