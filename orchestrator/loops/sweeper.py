"""Loop that frees space in the object store: it deletes nodes' files that no work refers to."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.dependencies import Dependencies
from orchestrator.storage import ObjectStore
from orchestrator.storage.interface import StoredObject
from orchestrator.store.run_rows import RunState
from orchestrator.store.runs import RunStore
from protocol.identifiers import Address, Digest
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.uploads import ObjectKey

PAGE = 500
"""Maximum number of objects that are checked in one round."""
DISCARDED_AT_ONCE = 100
"""Maximum number of slots per round whose files are deleted because the slot ended without work."""

_log = get_logger(__name__)


class Sweeper:
    """Deletes files of slots that ended without work, and old files that no work refers to.

    The sweeper finds old files page by page. Redis may not know the work of a file, because the step was deleted, or
    because Redis lost its data and the ledger has not been read again. So the sweeper deletes such a file only when it
    is older than any file of unfinished work can be. It never deletes validators' audit files.

    Args:
        pool_id: The pool.
        runs: Store of slots.
        objects: The pool's object store.
        lease: The leader lease of this loop.
        clock: Clock for the age of files.
        longest_lease: Longest lease time of a slot.
        kept: Minimum time for which unused files are kept. 0: files are never deleted, for example because the bucket's
            access key does not permit it.
        discard_after: Time for which the files of a slot are kept after the slot ended without work. Until then a
            submission of the slot may still be read from the ledger.
    """

    def __init__(
        self,
        *,
        pool_id: int,
        runs: RunStore,
        objects: ObjectStore,
        lease: LeaderLease,
        clock: Clock,
        longest_lease: timedelta,
        kept: timedelta,
        discard_after: timedelta,
    ) -> None:
        self._pool_id = pool_id
        self._runs = runs
        self._objects = objects
        self._lease = lease
        self._clock = clock
        self._longest_lease = longest_lease
        self._kept = kept
        self._discard_after = discard_after
        self._cursor = ""

    async def round(self) -> int:
        """Checks one page; returns the number of deleted files.

        Raises:
            StorageUnavailable: The store is down; the next round checks the same page.
            StoreUnavailable: Redis is down.
        """
        if not self._kept or not await self._lease.hold():
            self._cursor = ""
            return 0
        state = await self._runs.state()
        if not state.ready or not state.settled_s:
            return 0  # the ledger was not read to its end, so the files in use are not known yet
        return await self._delete_discarded() + await self._sweep_page(state)

    async def _delete_discarded(self) -> int:
        until = unix_ms(self._clock.now() - self._discard_after)
        deleted = 0
        for slot in await self._runs.discarded(until_ms=until, limit=DISCARDED_AT_ONCE):
            row = await self._runs.slot(slot)
            files = [] if row is None else [(row.node, sha256) for sha256 in await self._runs.files_of(slot)]
            for node, sha256 in set(files) - await self._runs.named(files):
                await self._objects.delete(ObjectKey(pool_id=self._pool_id, owner=node, sha256=sha256))
                deleted += 1
            await self._runs.forget_files(slot)
        return deleted

    async def _sweep_page(self, state: RunState) -> int:
        page = await self._objects.page(self._pool_id, after=self._cursor, limit=PAGE)
        before = self._clock.now() - self._needed(state)
        old = [each for each in page.objects if each.modified < before]
        named = await self._runs.named([_name(each) for each in old])
        unused = [each for each in old if _name(each) not in named]
        for each in unused:
            await self._objects.delete(each.key)
        if unused:
            _log.info("files-swept", deleted=len(unused))
        self._cursor = page.following
        return len(unused)

    def _needed(self, state: RunState) -> timedelta:
        """Returns the age up to which a file may be needed although Redis knows no work for it.

        It is twice the time from the beginning of a lease until its work is final.
        """
        return max(self._kept, 2 * (self._longest_lease + timedelta(seconds=state.settled_s)))


def build_sweeper(dependencies: Dependencies, *, lease: LeaderLease) -> Sweeper:
    """Builds the sweeper of an orchestrator that has a run."""
    if dependencies.slot_leasing is None:
        raise ValueError("the sweeper needs a run, whose slots name the files in use")
    terms, settings = dependencies.slot_leasing.terms, dependencies.settings
    return Sweeper(
        pool_id=settings.pool_id,
        runs=dependencies.slot_leasing.store,
        objects=dependencies.objects,
        lease=lease,
        clock=dependencies.clock,
        longest_lease=terms.lease,
        kept=timedelta(seconds=settings.upload_kept_s),
        # Until its upload URL expires, a node may still upload a file of the lease. And after a reorg the ledger may
        # have the slot's work again.
        discard_after=max(terms.pending, timedelta(seconds=settings.upload_url_life_s)),
    )


def _name(each: StoredObject) -> tuple[Address, Digest]:
    return each.key.owner, each.key.sha256
