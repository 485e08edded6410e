"""What is true of a submission, as the chain tells it: the lease it came under, and the blocks its seed may stand on.

Nothing here is taken from the node, and nothing from the orchestrator but which of several possible joinings it meant,
and how many groups a slot has whose lease a carrier's own contract hides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ledger.client import Ledger
from ledger.client.pools import Role
from ledger.client.work import NamedSubmission
from ledger.errors import ChainUnavailable
from ledger.events import CheckpointAnnounced, MemberJoined
from protocol.errors import MusterError, NotFound
from protocol.identifiers import Address, Digest
from protocol.leases import Lease, Work
from validator.footing import Footing, Mark, Remembered
from validator.seats import Seats, holders
from validator.submissions import SubmittedWork, WorkFacts

MOST_BEACONS = 64
"""Of a node that joined again and again, only the newest joinings can count, unless the orchestrator names one."""


class FactsMissing(MusterError):
    """The ledger took the work, and what it took it for can't be found there. Never the node's guilt.

    Worth another try, because a chain's node may lag behind; after some, a person has to look.
    """

    code = "facts-missing"
    status = 503
    retryable = True


class UnknownLease(FactsMissing):
    """The transaction names no lease under which the ledger could have taken the work."""

    code = "unknown-lease"
    default_hint = "is the chain's node in step with the chain? If it is, judge with `muster validator resolve`"


class UnknownCheckpoint(FactsMissing):
    """The version that was leased is not announced on the ledger, or the node never joined."""

    code = "unknown-checkpoint"
    default_hint = "the lease should not have been signed: ask the pool's owner, then `muster validator resolve`"


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
    """Finds the facts of submissions of one pool. What it has read of the chain it remembers, within bounds.

    Args:
        ledger: To read.
        pool_id: The pool.
        footing: Tells when the chain was reorganised; before its first look nothing is remembered.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int, footing: Footing) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._footing = footing
        self._times: Remembered[int, int] = Remembered(footing)
        self._joins: Remembered[Address, _Joins] = Remembered(footing)
        self._attempts: Remembered[_Version, _Attempts] = Remembered(footing)
        self._asked: dict[tuple[Mark, _Version], asyncio.Future[Sequence[CheckpointAnnounced]]] = {}
        self._orchestrators = Seats(ledger, pool_id=pool_id, role=Role.ORCHESTRATOR, footing=footing)
        self._publishers = Seats(ledger, pool_id=pool_id, role=Role.PUBLISHER, footing=footing)

    async def facts(
        self, work: SubmittedWork, *, hinted_beacon_block: int | None = None, hinted_groups: int | None = None
    ) -> WorkFacts:
        """The facts of a submission.

        Args:
            work: As its event tells it.
            hinted_beacon_block: What the orchestrator says that the seed stands on; counts only if it is possible.
            hinted_groups: How many groups it says that the slot has; counts only if the lease is hidden.

        Raises:
            ChainUnavailable: The chain can't be asked, or its node lags behind the submission: to be tried again.
            UnknownLease: See there.
            UnknownCheckpoint: See there.
        """
        lease, beacons = await asyncio.gather(self._lease(work), self._beacons(work, hinted_beacon_block))
        named = hinted_beacon_block is not None and beacons[0][0] == hinted_beacon_block
        return WorkFacts(work=work, lease=lease, beacons=beacons, named=named, groups=hinted_groups)

    # The lease

    async def _lease(self, work: SubmittedWork) -> Lease | None:
        """The lease that the ledger took: the first in the transaction that meets every condition of the contract."""
        named, at, rotations = await asyncio.gather(
            self._ledger.work.named_in(work.transaction, must_exist=True),
            self._time(work.block),
            self._orchestrators.rotations(),
        )
        if not named:
            return None  # through another contract
        orchestrators = holders(rotations, work.block, at)
        for each in named:
            if self._fits(each, work, at) and each.signer in orchestrators:
                return each.submission.lease
        raise UnknownLease(f"transaction {work.transaction} names no lease for work {work.key} by the orchestrator")

    def _fits(self, named: NamedSubmission, work: SubmittedWork, at: int) -> bool:
        submission, lease = named.submission, named.submission.lease
        if lease.key.hash != work.key or (lease.version, lease.digest) != (work.version, work.checkpoint):
            return False
        if (submission.sha256, submission.units) != (work.sha256, work.units):
            return False
        if work.units > lease.max_units or at > lease.expiry:
            return False
        if named.alone:
            return True  # there is only this one
        words = Work(lease_hash=lease.hash, sha256=work.sha256, units=work.units)
        try:
            return words.signer(submission.node_signature, self._ledger.work.domain) == work.node
        except MusterError:
            return False

    # The version

    async def announcement(self, work: SubmittedWork) -> CheckpointAnnounced:
        """Where the version that was leased was announced before the submission; the newest time, if more than once.

        Raises:
            ChainUnavailable: The chain can't be asked.
            UnknownCheckpoint: It was not.
        """
        found = await self._announcements(work)
        if not found:
            raise UnknownCheckpoint(
                f"version {work.version} of work {work.key} was not announced by block {work.block}"
            )
        return found[-1]

    async def publisher_of(self, announced: CheckpointAnnounced) -> Address:
        """Whose signature an announced version carries: the publisher's at that time, whoever it is by now.

        While a key and its successor both count it is the one that announced.

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

    # The beacon

    async def _beacons(self, work: SubmittedWork, hinted: int | None) -> tuple[tuple[int, Digest], ...]:
        """The blocks of the later of announcement and joining, for each pair of them that can be meant.

        The newest first, but for the one that the orchestrator names.
        """
        announced, joined = await asyncio.gather(self._announcements(work), self._joinings(work))
        if not announced or not joined:
            missing = "its version was not announced" if not announced else "its node never joined"
            raise UnknownCheckpoint(f"work {work.key} is on the ledger, and {missing} before block {work.block}")
        pairs = [(one.log, other.log) for one in announced for other in joined]
        later = [max(pair, key=lambda log: log.block_number) for pair in pairs]
        possible = {log.block_number: log.block_hash for log in later}
        ordered = sorted(possible.items(), key=lambda beacon: (beacon[0] == hinted, beacon[0]), reverse=True)
        return tuple(ordered[:MOST_BEACONS])

    async def _announcements(self, work: SubmittedWork) -> list[CheckpointAnnounced]:
        """Of the work's version, before the work; several if an attempt was announced again with the same digest.

        Whoever asks the same meanwhile, on the same footing, gets the same answer.
        """
        mark, name = self._footing.mark(), (work.run, work.version)
        asked = self._asked.get((mark, name))
        if asked is None:
            asked = self._asked[mark, name] = asyncio.ensure_future(self._ask_announcements(mark, name))
            asked.add_done_callback(lambda done: self._answered(mark, name, done))
        events = await asyncio.shield(asked)  # others wait for it too
        return [each for each in events if each.digest == work.checkpoint and each.log.block_number <= work.block]

    def _answered(self, mark: Mark, name: _Version, done: asyncio.Future[Sequence[CheckpointAnnounced]]) -> None:
        del self._asked[mark, name]
        if not done.cancelled():
            done.exception()  # nobody may be left to fetch it

    async def _ask_announcements(self, mark: Mark, name: _Version) -> Sequence[CheckpointAnnounced]:
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
        """A node joins seldom, so one number tells whether its joinings have to be read again."""
        mark, count = self._footing.mark(), await self._ledger.pools.joins(self._pool_id, work.node)
        known = self._joins.get(work.node)
        if known is None or known.count != count:
            every = await self._ledger.history(MemberJoined, pool_id=self._pool_id, second=work.node)
            known = _Joins(count, every)
            if every:
                self._joins.put(work.node, known, block=every[-1].log.block_number, mark=mark)
        return [each for each in known.events if each.log.block_number <= work.block]

    async def _time(self, block: int) -> int:
        mark, known = self._footing.mark(), self._times.get(block)
        if known is None:
            try:
                known = await self._ledger.block_time(block)
            except NotFound as error:
                raise ChainUnavailable(f"the chain's node has no block {block} (yet)") from error
            self._times.put(block, known, block=block, mark=mark)
        return known
