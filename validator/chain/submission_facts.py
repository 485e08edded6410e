"""Facts of a submission from the ledger: its lease, and the hash of the beacon block, which is part of the seed.

No data here comes from the node or from the orchestrator's API. The contract has verified the lease in the event
`WorkSubmitted`; this module checks that the lease names an allowed beacon block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ledger.client import Ledger
from ledger.client.pools import Role
from ledger.errors import ChainUnavailable
from ledger.events.types import CheckpointAnnounced, MemberJoined
from protocol.errors import MusterError, NotFound
from protocol.identifiers import Address, Digest
from validator.chain.reorgs import ChainVersion, ReorgAwareCache, ReorgTracker
from validator.chain.role_history import RoleHistory
from validator.domain.submissions import SubmittedWork, WorkFacts


class FactsMissing(MusterError):
    """The lease of a submission names data that is not on the ledger. This never counts against the node.

    The validator retries, because the RPC endpoint may lag behind, and parks the work after some attempts.
    """

    code = "facts-missing"
    status = 503
    retryable = True


class UnknownCheckpoint(FactsMissing):
    """The ledger has no announcement of the leased version, or the node never joined the pool."""

    code = "unknown-checkpoint"
    default_hint = (
        "the orchestrator should not have signed the lease: ask the pool's owner, then `muster validator resolve`"
    )


class WrongBeacon(FactsMissing):
    """The beacon block of the lease is not the later block of an announcement of the version and a join of the node.

    The orchestrator signed the lease, so the error is the orchestrator's. The file of such a submission can't be
    judged.
    """

    code = "wrong-beacon"
    default_hint = "the orchestrator signed a wrong lease: ask the pool's owner, then `muster validator resolve`"


_Version = tuple[Digest, int]
"""Id of a run, and number of one of the run's versions."""


@dataclass(frozen=True, slots=True)
class _Joins:
    count: int
    """The ledger's count of the node's joins when the events were read."""
    events: Sequence[MemberJoined]


@dataclass(frozen=True, slots=True)
class _Attempts:
    newest: int
    """Number of the version's newest attempt on the ledger when the events were read."""
    events: Sequence[CheckpointAnnounced]


class FactFinder:
    """Finds the facts of one pool's submissions on the ledger, with bounded caches.

    Args:
        ledger: Ledger client.
        pool_id: Id of the pool.
        reorgs: Tracker that detects reorganisations; until the tracker has seen a block, nothing is cached.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int, reorgs: ReorgTracker) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._reorgs = reorgs
        self._times: ReorgAwareCache[int, int] = ReorgAwareCache(reorgs)
        self._joins: ReorgAwareCache[Address, _Joins] = ReorgAwareCache(reorgs)
        self._attempts: ReorgAwareCache[_Version, _Attempts] = ReorgAwareCache(reorgs)
        self._asked: dict[tuple[ChainVersion, _Version], asyncio.Future[Sequence[CheckpointAnnounced]]] = {}
        self._providers: ReorgAwareCache[Address, Address] = ReorgAwareCache(reorgs)
        self._publishers = RoleHistory(ledger, pool_id=pool_id, role=Role.PUBLISHER, reorgs=reorgs)

    async def facts(self, work: SubmittedWork) -> WorkFacts:
        """Returns the facts of a submission.

        Args:
            work: The submission from its event.

        Raises:
            ChainUnavailable: The chain does not answer, or the RPC endpoint lags behind the submission.
            UnknownCheckpoint: The version was not announced, or the node had not joined, before the submission.
            WrongBeacon: The lease's beacon block is not the later block of an announcement and a join of the node.
        """
        announced, joined = await asyncio.gather(self._announcements(work), self._joinings(work))
        if not announced or not joined:
            missing = (
                f"version {work.version} was not announced" if not announced else f"node {work.node} had not joined"
            )
            raise UnknownCheckpoint(f"work {work.key} was submitted in block {work.block}, but {missing} by then")
        domain = self._ledger.work.domain
        return WorkFacts(
            work=work,
            chain_id=domain.chain_id,
            work_ledger=domain.contract,
            beacon=_beacon(work, announced, joined),
        )

    async def provider_of(self, node: Address) -> Address | None:
        """Returns the provider of a node, retired nodes included; None if the node was never registered.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        mark, known = self._reorgs.mark(), self._providers.get(node)
        if known is None:
            found = await self._ledger.registry.node(node)
            if found is None:
                return None
            known = found.provider
            self._providers.put(node, known, block=mark.newest, mark=mark)
        return known

    # Versions

    async def announcement(self, work: SubmittedWork) -> CheckpointAnnounced:
        """Returns the newest announcement of the leased version up to the submission's block.

        Raises:
            ChainUnavailable: The chain does not answer.
            UnknownCheckpoint: The version was not announced before the submission.
        """
        found = await self._announcements(work)
        if not found:
            raise UnknownCheckpoint(
                f"version {work.version} of work {work.key} was not announced by block {work.block}"
            )
        return found[-1]

    async def publisher_of(self, announced: CheckpointAnnounced) -> Address:
        """Returns the key that was the publisher in an announcement's block, and that signed the version's manifest.

        For some time after a change of the publisher, two keys are valid; then this method returns the key that sent
        the announcement.

        Raises:
            ChainUnavailable: The chain does not answer.
            UnknownCheckpoint: The pool had no publisher in that block.
        """
        block = announced.log.block_number
        possible = await self._publishers.at(block, await self._time(block))
        if not possible:
            raise UnknownCheckpoint(f"pool {self._pool_id} had no publisher in block {block}")
        if len(possible) > 1:
            try:
                sender = await self._ledger.sender_of(announced.log.transaction)
            except NotFound as error:
                raise ChainUnavailable(f"the RPC endpoint lags behind: {error.detail}") from error
            return sender if sender in possible else possible[0]
        return possible[0]

    # Cached reads of the chain

    async def _announcements(self, work: SubmittedWork) -> list[CheckpointAnnounced]:
        """Returns all announcements of the work's version up to the submission's block.

        Concurrent calls for the same version share one read, unless a reorg happens in between.
        """
        mark, name = self._reorgs.mark(), (work.run, work.version)
        asked = self._asked.get((mark, name))
        if asked is None:
            asked = self._asked[mark, name] = asyncio.ensure_future(self._ask_announcements(mark, name))
            asked.add_done_callback(lambda done: self._answered(mark, name, done))
        events = await asyncio.shield(asked)  # so a cancelled call does not cancel the shared read
        return [each for each in events if each.digest == work.checkpoint and each.log.block_number <= work.block]

    def _answered(
        self, mark: ChainVersion, name: _Version, done: asyncio.Future[Sequence[CheckpointAnnounced]]
    ) -> None:
        del self._asked[mark, name]
        if not done.cancelled():
            done.exception()  # all callers may have been cancelled; this marks the exception as retrieved

    async def _ask_announcements(self, mark: ChainVersion, name: _Version) -> Sequence[CheckpointAnnounced]:
        run, version = name
        newest = await self._ledger.checkpoints.get(self._pool_id, run, version)
        if newest is None:
            return ()
        known = self._attempts.get(name)
        if known is None or known.newest != newest.attempt:
            every = await self._ledger.history(CheckpointAnnounced, pool_id=self._pool_id, second=run)
            known = _Attempts(newest.attempt, [each for each in every if each.version == version])
            if known.events:
                self._attempts.put(name, known, block=known.events[-1].log.block_number, mark=mark)
        return known.events

    async def _joinings(self, work: SubmittedWork) -> list[MemberJoined]:
        """Returns the node's joins up to the submission's block.

        If the ledger's count of joins equals the cached count, the cached events are complete.
        """
        mark, count = self._reorgs.mark(), await self._ledger.pools.joins(self._pool_id, work.node)
        known = self._joins.get(work.node)
        if known is None or known.count != count:
            every = await self._ledger.history(MemberJoined, pool_id=self._pool_id, second=work.node)
            known = _Joins(count, every)
            if every:
                self._joins.put(work.node, known, block=every[-1].log.block_number, mark=mark)
        return [each for each in known.events if each.log.block_number <= work.block]

    async def _time(self, block: int) -> int:
        mark, known = self._reorgs.mark(), self._times.get(block)
        if known is None:
            try:
                known = await self._ledger.block_time(block)
            except NotFound as error:
                raise ChainUnavailable(f"the RPC endpoint has no block {block} (yet)") from error
            self._times.put(block, known, block=block, mark=mark)
        return known


def _beacon(work: SubmittedWork, announced: Sequence[CheckpointAnnounced], joined: Sequence[MemberJoined]) -> Digest:
    """Returns the hash of the lease's beacon block.

    The beacon block must be the later one of two blocks: of an announcement of the version, and of a join of the node.

    There may be several announcements and several joins: a publisher may repeat an announcement with the same digest,
    and a node may leave and join again. Any pair of an announcement and a join is allowed, because the orchestrator
    chose one pair when it signed the lease.

    Raises:
        WrongBeacon: The lease names another block.
    """
    logs = [each.log for each in (*announced, *joined)]
    # The later event of every pair is at or after both the first announcement and the first join.
    earliest = max(min(each.log.block_number for each in events) for events in (announced, joined))
    for log in logs:
        if log.block_number == work.beacon_block and log.block_number >= earliest:
            return log.block_hash
    possible = sorted({log.block_number for log in logs if log.block_number >= earliest})
    raise WrongBeacon(
        f"the lease of work {work.key} names beacon block {work.beacon_block}; "
        f"by its version's announcements and its node's joins, only the blocks {possible[-8:]} are allowed"
    )
