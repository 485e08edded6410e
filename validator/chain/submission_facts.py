"""Facts of a submission: the lease in its event, and the hash of the beacon block that is part of the seed.

Nothing here comes from the node or the orchestrator's API. The contract has verified the lease in the event; this
module checks that its beacon block is an allowed one.
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
    """The lease of accepted work names data that is not on the ledger. This never counts against the node.

    Retried, because the RPC node may lag behind; parked for a person after some attempts.
    """

    code = "facts-missing"
    status = 503
    retryable = True


class UnknownCheckpoint(FactsMissing):
    """The version that was leased is not announced on the ledger, or the node never joined."""

    code = "unknown-checkpoint"
    default_hint = "the lease should not have been signed: ask the pool's owner, then `muster validator resolve`"


class WrongBeacon(FactsMissing):
    """The lease names a beacon block that is neither the version's announcement nor the node's joining.

    The orchestrator signed the lease, so the error is the orchestrator's. Such a file can't be judged.
    """

    code = "wrong-beacon"
    default_hint = "the orchestrator signed a wrong lease: ask the pool's owner, then `muster validator resolve`"


_Version = tuple[Digest, int]
"""A run and a version of it."""


@dataclass(frozen=True, slots=True)
class _Joins:
    count: int
    events: Sequence[MemberJoined]


@dataclass(frozen=True, slots=True)
class _Attempts:
    newest: int
    events: Sequence[CheckpointAnnounced]


class FactFinder:
    """Finds the facts of one pool's submissions, with a bounded cache.

    Args:
        ledger: Ledger client.
        pool_id: The pool.
        reorgs: Detects reorganisations; before its first read nothing is cached.
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
            ChainUnavailable: The chain does not answer, or the RPC node lags behind the submission.
            UnknownCheckpoint: The version was not announced, or the node had not joined, before the submission.
            WrongBeacon: The lease's beacon block is not the later of an announcement and a joining.
        """
        announced, joined = await asyncio.gather(self._announcements(work), self._joinings(work))
        if not announced or not joined:
            missing = "its version was not announced" if not announced else "its node never joined"
            raise UnknownCheckpoint(f"work {work.key} is on the ledger, and {missing} before block {work.block}")
        return WorkFacts(work=work, chain_id=self._ledger.deployment.chain_id, beacon=_beacon(work, announced, joined))

    async def provider_of(self, node: Address) -> Address | None:
        """Returns the provider of a node, also of a retired one; None if the node was never registered.

        Raises:
            ChainUnavailable: The chain can't be asked.
        """
        mark, known = self._reorgs.mark(), self._providers.get(node)
        if known is None:
            found = await self._ledger.registry.node(node)
            if found is None:
                return None
            known = found.provider
            self._providers.put(node, known, block=mark.newest, mark=mark)
        return known

    # The version

    async def announcement(self, work: SubmittedWork) -> CheckpointAnnounced:
        """Returns the block that announced the leased version before the submission; the newest, if several.

        Raises:
            ChainUnavailable: The chain can't be asked.
            UnknownCheckpoint: There is no such announcement.
        """
        found = await self._announcements(work)
        if not found:
            raise UnknownCheckpoint(
                f"version {work.version} of work {work.key} was not announced by block {work.block}"
            )
        return found[-1]

    async def publisher_of(self, announced: CheckpointAnnounced) -> Address:
        """Returns the publisher key at the time of an announcement, which signed the version.

        During a rotation, when two keys are valid, it is the one that sent the announcement.

        Raises:
            ChainUnavailable: The chain can't be asked.
        """
        block = announced.log.block_number
        possible = await self._publishers.at(block, await self._time(block))
        if not possible:
            raise UnknownCheckpoint(f"pool {self._pool_id} had no publisher in block {block}")
        if len(possible) > 1:
            try:
                sender = await self._ledger.sender_of(announced.log.transaction)
            except NotFound as error:
                raise ChainUnavailable(f"the chain's node has not (yet): {error.detail}") from error
            return sender if sender in possible else possible[0]
        return possible[0]

    # Cached reads of the chain

    async def _announcements(self, work: SubmittedWork) -> list[CheckpointAnnounced]:
        """Returns announcements of the work's version before the work; several if one was repeated.

        Concurrent calls for the same version share one read, unless a reorg happens in between.
        """
        mark, name = self._reorgs.mark(), (work.run, work.version)
        asked = self._asked.get((mark, name))
        if asked is None:
            asked = self._asked[mark, name] = asyncio.ensure_future(self._ask_announcements(mark, name))
            asked.add_done_callback(lambda done: self._answered(mark, name, done))
        events = await asyncio.shield(asked)  # other calls wait for it, too
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
        """Returns the blocks in which the node joined; its present join block tells whether they must be read again."""
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
                raise ChainUnavailable(f"the chain's node has no block {block} (yet)") from error
            self._times.put(block, known, block=block, mark=mark)
        return known


def _beacon(work: SubmittedWork, announced: Sequence[CheckpointAnnounced], joined: Sequence[MemberJoined]) -> Digest:
    """Returns the hash of the lease's beacon block, which must be the later of an announcement and a join.

    There may be several of either: an announcement may be repeated with the same digest, and a node may leave and join
    again. The orchestrator chose a pair when it signed the lease.
    """
    logs = [each.log for each in (*announced, *joined)]
    # In every pair, the later event is at or after both the first announcement and the first join.
    earliest = max(min(each.log.block_number for each in events) for events in (announced, joined))
    for log in logs:
        if log.block_number == work.beacon_block and log.block_number >= earliest:
            return log.block_hash
    possible = sorted({log.block_number for log in logs if log.block_number >= earliest})
    raise WrongBeacon(
        f"the lease of work {work.key} names beacon block {work.beacon_block}; "
        f"its version's announcements and its node's joinings are in {possible[-8:]}"
    )
