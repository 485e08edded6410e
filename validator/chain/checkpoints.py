"""Names the version of the policy that work was made with, and where it can be fetched."""

from __future__ import annotations

from collections import OrderedDict
from datetime import timedelta

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
    """Knows digests and publisher from the ledger, relays from the orchestrator.

    Args:
        chain: The ledger.
        orchestrator: Knows the relays of the newest version; those of an older one are the same.
        relays: From the settings; believed before the orchestrator's.
        clock: Whose time counts.
    """

    def __init__(
        self, chain: PoolChain, *, orchestrator: OrchestratorClient, relays: tuple[str, ...], clock: Clock
    ) -> None:
        self._chain = chain
        self._orchestrator = orchestrator
        self._own_relays = relays
        self._clock = clock
        self._publishers: OrderedDict[tuple[Digest, int], Address] = OrderedDict()
        self._relays: tuple[float, tuple[str, ...]] = (float("-inf"), ())

    async def of(self, work: SubmittedWork) -> CheckpointRef:
        """The version that the work's lease names.

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
        """Its announcement, and who was publisher then: a key that was rotated out since signed what it signed.

        The announcement is asked for each time, since a reorganisation may take it back. Who the publisher was follows
        from the block that holds it: for a block of this hash that never changes.
        """
        facts = (await self._chain.connected()).facts
        announced = await facts.announcement(work)
        place = (announced.log.block_hash, announced.log.index)
        if place not in self._publishers:
            self._publishers[place] = await facts.publisher_of(announced)
            if len(self._publishers) > MOST_KNOWN:
                self._publishers.popitem(last=False)
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
            return relays  # it is down, and where versions lay a moment ago they still are
        if newest is not None:
            relays = newest.relays
        self._relays = (self._clock.monotonic() + RELAYS_GOOD_FOR.total_seconds(), relays)
        return relays
