"""Frees space in the object store: deletes files that no work needs any more, and old audit files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from orchestrator.dependencies import Dependencies
from orchestrator.domain.retention import is_needed, needed_age
from orchestrator.metrics import ObjectTotals, RetentionMetrics
from orchestrator.storage import ObjectStore
from orchestrator.storage.interface import StorageUnavailable, StoredObject
from orchestrator.store.run_rows import RunState
from orchestrator.store.runs import RunStore
from protocol.identifiers import Address, Digest
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.uploads import ObjectKey

PAGE = 500
"""Maximum number of objects of each kind that are checked in one round."""
DISCARDED_AT_ONCE = 100
"""Maximum number of slots per round whose files are deleted because the slot ended without work."""
MOST_FAILURES = 3
"""Number of objects that can't be deleted after which a round goes on to other objects: the store may be down."""
DELETED_PER_LEASE = 25
"""Number of deleted objects after which the leader lease is renewed. A slow bucket takes about 0.1 s for each."""

_log = get_logger(__name__)


class ObjectKind(StrEnum):
    """Kind of an object in the store, as in metrics and logs."""

    FILE = "file"
    """File of a node: a rollout file, or another file of a task."""
    AUDIT = "audit"
    """Audit file of a validator."""


class Decision(StrEnum):
    """Decision about an object in a pass over the store."""

    YOUNG = "young"
    """Kept, because it is younger than its retention time."""
    NEEDED = "needed"
    """Kept, because open or unlearned work needs it."""
    EXPIRED = "expired"
    """Deleted; in a dry run it would have been deleted."""


@dataclass(slots=True)
class _Pass:
    """A pass over all objects of one kind, which takes many rounds."""

    cursor: str = ""
    totals: dict[Decision, ObjectTotals] = field(default_factory=lambda: {each: ObjectTotals() for each in Decision})


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTerms:
    """Terms by which the sweeper decides.

    Args:
        kept: Minimum time for which objects are kept, by kind. Zero: such objects are never deleted, for example
            because the bucket's access key does not permit it.
        longest_lease: Longest lease time of a slot.
        discard_after: Time for which the files of a slot are kept after the slot ended without work. Until then a
            submission of the slot may still be read from the ledger.
        has_run: Whether the ledger's events of a run are read. If so, nothing is deleted before they were read to
            their end.
        learns: Whether a trainer learns from the run.
        dry_run: True to delete nothing, and only report what would be deleted.
    """

    kept: dict[ObjectKind, timedelta]
    longest_lease: timedelta
    discard_after: timedelta
    has_run: bool = True
    learns: bool = True
    dry_run: bool = False


class Sweeper:
    """Deletes files of slots that ended without work, and objects that are old and that no work needs.

    The sweeper walks through the store page by page. An object is deleted if it is older than its retention time, and
    no work needs it: no work that is not final names it (`RunStore.named_by_open_work`), and the slot that it belongs
    to is neither open nor accepted and unlearned (`is_needed`). Objects count as old by the time up to which the ledger
    was read, so while the chain is down, none becomes old. The retention time is never shorter than the time for which
    work is usually open (`needed_age`).

    Objects are deleted before the records that name them, so a crash between the two leaves a record that the next
    round handles again.

    Args:
        pool_id: The pool.
        runs: Store of slots.
        objects: The pool's object store.
        lease: The leader lease of this loop.
        clock: Clock for the age of files.
        terms: Terms of the decisions.
        metrics: Metrics of deleted and stored objects.
    """

    def __init__(
        self,
        *,
        pool_id: int,
        runs: RunStore,
        objects: ObjectStore,
        lease: LeaderLease,
        clock: Clock,
        terms: SweepTerms,
        metrics: RetentionMetrics,
    ) -> None:
        self._pool_id = pool_id
        self._runs = runs
        self._objects = objects
        self._lease = lease
        self._clock = clock
        self._terms = terms
        self._metrics = metrics
        self._passes = {kind: _Pass() for kind in ObjectKind}
        self._failures: list[StorageUnavailable] = []

    async def round(self) -> int:
        """Checks one page of each kind of objects; returns the number of deleted ones.

        An object that can't be deleted, for example because somebody else owns its file, does not stop the others.

        Raises:
            StorageUnavailable: The store is down, or an object can't be deleted; all other objects were handled.
            StoreUnavailable: Redis is down.
        """
        if not await self._lease.hold():
            self._passes = {kind: _Pass() for kind in ObjectKind}
            self._metrics.forget_stored()
            return 0
        state = await self._runs.state()
        if self._terms.has_run and not (state.ready and state.settled_s):
            return 0  # the ledger was not read to its end, so the files in use are not known yet
        self._failures = []
        deleted = 0
        if self._terms.kept[ObjectKind.FILE] and not self._terms.dry_run:
            deleted += await self._delete_discarded()
        for kind in ObjectKind:
            deleted += await self._sweep_page(kind, state)
        if self._failures:
            raise self._failures[0]
        return deleted

    async def _delete_discarded(self) -> int:
        until = unix_ms(self._clock.now() - self._terms.discard_after)
        deleted = 0
        for slot in await self._runs.discarded(until_ms=until, limit=DISCARDED_AT_ONCE):
            row = await self._runs.slot(slot)
            files = [] if row is None else [(row.node, sha256) for sha256 in await self._runs.files_of(slot)]
            for node, sha256 in sorted(set(files) - await self._runs.named(files)):
                key = ObjectKey(pool_id=self._pool_id, owner=node, sha256=sha256)
                try:
                    if (facts := await self._objects.head(key)) is not None:
                        if not await self._delete(ObjectKind.FILE, key, facts.size, number=deleted):
                            return deleted
                        deleted += 1
                except StorageUnavailable as error:
                    self._failures.append(error)
                    break
            else:
                await self._runs.forget_files(slot)
            if len(self._failures) >= MOST_FAILURES:
                break
        return deleted

    async def _sweep_page(self, kind: ObjectKind, state: RunState) -> int:
        current, terms, audits = self._passes[kind], self._terms, kind is ObjectKind.AUDIT
        page = await self._objects.page(self._pool_id, audits=audits, after=current.cursor, limit=PAGE)
        settled = timedelta(seconds=state.settled_s)
        kept = needed_age(terms.kept[kind], longest_lease=terms.longest_lease, settled=settled)
        before = self._read_until(state) - kept
        old = [each for each in page.objects if each.modified < before] if terms.kept[kind] else []
        needed = await self._needed(old, audits=audits, state=state)
        expired = [each for each in old if _name(each) not in needed]
        deleted, failures = 0, 0
        for each in [] if terms.dry_run else expired:
            try:
                if not await self._delete(kind, each.key, each.size, number=deleted):
                    return deleted
            except StorageUnavailable as error:
                self._failures.append(error)
                failures += 1
                if failures >= MOST_FAILURES:
                    break
            else:
                deleted += 1
        decisions = {each.key: Decision.NEEDED for each in old} | {each.key: Decision.EXPIRED for each in expired}
        for each in page.objects:
            current.totals[decisions.get(each.key, Decision.YOUNG)].add(each.size)
        current.cursor = page.following
        if not page.following:
            self._end_pass(kind, current)
        return deleted

    async def _needed(
        self, objects: Sequence[StoredObject], *, audits: bool, state: RunState
    ) -> set[tuple[Address, Digest]]:
        """Returns those objects that open or unlearned work needs, as pairs of owner and SHA-256."""
        learned = min(state.floor, state.version or 0) if self._terms.learns else None
        names = [_name(each) for each in objects]
        rows = await self._runs.work_of(names, audits=audits)
        by_slot = {name for name, row in rows.items() if is_needed(row.slot, step=row.step, learned=learned)}
        return by_slot | await self._runs.named_by_open_work(names, audits=audits)

    def _read_until(self, state: RunState) -> datetime:
        """Returns the time up to which all work is known: now, or that of the ledger's last complete reading."""
        now = self._clock.now()
        return min(now, datetime.fromtimestamp(state.synced_ms / 1000, UTC)) if self._terms.has_run else now

    async def _delete(self, kind: ObjectKind, key: ObjectKey, size: int, *, number: int) -> bool:
        """Deletes an object; returns False if another instance took over the leader lease.

        Args:
            kind: Kind of the object.
            key: Key of the object.
            size: Size of the object, in bytes.
            number: Number of objects that the caller has deleted already.
        """
        if number % DELETED_PER_LEASE == DELETED_PER_LEASE - 1 and not await self._lease.hold():
            return False
        try:
            await self._objects.delete(key)
        except StorageUnavailable as error:
            _log.warning("object-not-deleted", object=str(key), detail=error.detail)
            raise
        self._metrics.count_deleted(kind, size=size)
        return True

    def _end_pass(self, kind: ObjectKind, ended: _Pass) -> None:
        found = {
            f"{decision}_{name}": getattr(total, name)
            for decision, total in ended.totals.items()
            for name in ("objects", "bytes")
        }
        if ended.totals[Decision.EXPIRED].objects:
            _log.info("objects-swept", kind=kind.value, dry_run=self._terms.dry_run, **found)
        self._metrics.set_stored(kind, {decision.value: total for decision, total in ended.totals.items()})
        self._passes[kind] = _Pass()


def build_sweeper(dependencies: Dependencies, *, lease: LeaderLease, metrics: RetentionMetrics) -> Sweeper:
    """Builds the sweeper of an orchestrator."""
    settings, leasing, policy = dependencies.settings, dependencies.slot_leasing, dependencies.settings.retention()
    longest = timedelta(seconds=settings.run_lease_s)
    pending = timedelta(seconds=settings.run_pending_s)
    return Sweeper(
        pool_id=settings.pool_id,
        # Without a run, Redis may still have the slots of an earlier one, whose open work keeps its files.
        runs=RunStore(dependencies.database, default_demand=1) if leasing is None else leasing.store,
        objects=dependencies.objects,
        lease=lease,
        clock=dependencies.clock,
        terms=SweepTerms(
            kept={ObjectKind.FILE: policy.files, ObjectKind.AUDIT: policy.audits},
            longest_lease=longest,
            # Until its upload URL expires, a node may still upload a file of the lease. And after a reorg the ledger
            # may have the slot's work again.
            discard_after=max(pending, timedelta(seconds=settings.upload_url_life_s)),
            has_run=leasing is not None,
            learns=leasing is None or not leasing.terms.serving,
            dry_run=settings.retention_dry_run,
        ),
        metrics=metrics,
    )


def _name(each: StoredObject) -> tuple[Address, Digest]:
    return each.key.owner, each.key.sha256
