"""Issues upload tickets and download links, and decides who may read which file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from orchestrator.chain.cached_pool import CachedPool
from orchestrator.domain.slots import SlotState
from orchestrator.nodes.membership import NodeStatusCache
from orchestrator.storage.interface import ObjectFacts, ObjectMissing, ObjectStore
from orchestrator.store.nodes import NodeStore
from orchestrator.store.run_rows import SlotRow, slot_id
from orchestrator.store.runs import MOST_FILES, RunStore
from orchestrator.store.uploads import UploadStore
from protocol.errors import Conflict, Forbidden, TooLarge
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.wire.slots import SlotName
from protocol.wire.uploads import ObjectKey, ObjectLink, UploadKind, UploadRequest, UploadTicket

FILE_BYTES = 1 << 20
"""Bytes that the maximum size of a rollout file includes for schema and statistics."""


class NoLease(Conflict):
    """The rollout file belongs to no live lease of the node."""

    code = "no-lease"
    default_hint = "a node uploads work while its lease lasts; lease another slot"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    """Size limits of files, in bytes.

    Args:
        largest: Maximum size of any file.
        unit: Bytes of a rollout file that are allowed for each work unit of its lease.
        group: Further bytes of a rollout file that are allowed for each group of its lease.
    """

    largest: int
    unit: int
    group: int

    def of_work(self, row: SlotRow) -> int:
        """Returns the maximum size of a rollout file for a slot, in bytes; honest files are smaller."""
        return min(self.largest, FILE_BYTES + self.unit * row.max_units + self.group * row.groups)


class UploadService:
    """Issues upload tickets and download links.

    Args:
        pool_id: Number of the pool whose files the store has.
        store: The pool's object store.
        uploads: Counts tickets against the upload quota of each node.
        nodes: Store of nodes.
        status_cache: Looks up whether a node is a member.
        pool: The pool's state on the ledger, with its role keys.
        slots: Store of the run's slots; None if the pool has no run and so accepts no rollout files.
        clock: Clock of expiry times.
        limits: Size limits of files.
        admitted_for: Time for which the hashes of files that were allowed under a lease are stored. The sweeper needs
            them to delete files that were uploaded but not submitted.
        put_life: Validity of an upload URL.
        get_life: Validity of a download link.
    """

    def __init__(
        self,
        *,
        pool_id: int,
        store: ObjectStore,
        uploads: UploadStore,
        nodes: NodeStore,
        status_cache: NodeStatusCache,
        pool: CachedPool,
        slots: RunStore | None,
        clock: Clock,
        limits: UploadLimits,
        admitted_for: timedelta,
        put_life: timedelta,
        get_life: timedelta,
    ) -> None:
        self._pool_id = pool_id
        self._store = store
        self._uploads = uploads
        self._nodes = nodes
        self._status_cache = status_cache
        self._pool = pool
        self._slots = slots
        self._clock = clock
        self._limits = limits
        self._admitted_for = admitted_for
        self._put_life = put_life
        self._get_life = get_life

    async def has_work(self, row: SlotRow) -> bool:
        """Returns whether the store has the file of submitted work, in a size that is allowed.

        A node can upload a larger file as another kind of file. No step should wait for such a file, because validators
        will judge it forged for its size.

        Raises:
            StorageUnavailable: The store does not answer.
        """
        found = await self._store.head(ObjectKey(pool_id=self._pool_id, owner=row.node, sha256=row.sha256))
        return found is not None and found.size <= self._limits.of_work(row)

    async def ticket(self, owner: Address, request: UploadRequest) -> UploadTicket:
        """Issues an upload ticket, or reports that the file exists, which costs no quota.

        Raises:
            TooLarge: The file is larger than the pool accepts, or than an honest file of its lease can be.
            Forbidden: The owner is not a member and has no lease; or the file is an audit file and the owner is not a
                validator.
            NoLease: A rollout file belongs to no live lease of its owner.
            Conflict: The store has an object of another size under this hash, so the request or the store is wrong.
            QuotaUsed: The owner has used up its quota.
            StorageFull, StorageUnavailable: The store can't accept the file.
        """
        if request.size > self._limits.largest:
            raise TooLarge(
                f"the file has {request.size} bytes, and this pool accepts at most {self._limits.largest}",
                hint="upload several smaller files",
            )
        audit = request.kind is UploadKind.AUDIT
        row = await self._slot_of(owner, request.slot)
        if row is None:  # former members may still deliver under their leases
            await self._check_owner(owner, audit=audit)
        key = ObjectKey(pool_id=self._pool_id, owner=owner, sha256=request.sha256, audit=audit)
        if (there := await self._store.head(key)) is not None:
            return await self._found(owner, key, there, request.size)
        if request.slot is not None:
            await self._check_slot(row, request.slot, request)
        # The URL is made before the ticket is counted, so that a refusal because of a full disk uses no quota.
        put = await self._store.presign_put(
            key, size=request.size, content_type=request.content_type, expires=self._put_life
        )
        now = self._clock.now()
        await self._uploads.take(
            owner, key, size=request.size, now=now, expires=now + self._put_life, other=request.kind is UploadKind.FILE
        )
        return UploadTicket(
            key=str(key),
            already_there=False,
            url=put.url,
            headers=dict(put.headers),
            expires_ms=unix_ms(put.expires),
        )

    async def link(self, key: ObjectKey, *, reader: Address | None) -> ObjectLink:
        """Issues a download link.

        Args:
            key: Key of the object.
            reader: Signer of the request; None for the pool's owner.

        Raises:
            Forbidden: The object is another node's work.
            ObjectMissing: There is no such object.
        """
        if reader is not None and not await self._may_read(key, reader):
            raise Forbidden(
                f"{reader} may not read files of {key.owner}",
                hint="a node reads its own files; validators, the manager and the pool's owner read all",
                code="not-yours",
            )
        facts = await self._store.head(key) if key.pool_id == self._pool_id else None
        if facts is None:
            raise ObjectMissing(f"there is no object {key}")
        url = await self._store.presign_get(key, expires=self._get_life)
        until = self._clock.now() + self._get_life
        return ObjectLink(key=str(key), size=facts.size, url=url, expires_ms=unix_ms(until))

    async def _check_owner(self, owner: Address, *, audit: bool) -> None:
        if audit:
            if owner not in (await self._pool.get()).validators:
                raise Forbidden(
                    f"{owner} is not a validator of pool {self._pool_id}",
                    hint="only validators upload audit files; `muster pool roles` lists them",
                    code="not-a-validator",
                )
            return
        membership = await self._status_cache.membership(await self._nodes.get(owner))
        if not membership.member:
            raise Forbidden(
                f"{owner} is not a member of pool {self._pool_id}",
                hint="join the pool again; if the node is banned, the pool's manager can lift the ban",
                code="not-a-member",
                retryable=not membership.banned,
            )

    async def _slot_of(self, owner: Address, slot: SlotName | None) -> SlotRow | None:
        if slot is None or self._slots is None:
            return None
        return await self._slots.slot(slot_id(slot.step, owner, slot.index))

    async def _check_slot(self, row: SlotRow | None, slot: SlotName, request: UploadRequest) -> None:
        """Checks that a rollout file may be uploaded for a slot.

        The slot's lease must be live, or the file must be the one that was submitted under the lease.
        """
        if row is None or self._slots is None:
            raise NoLease(f"this node has no lease of step {slot.step}, index {slot.index}")
        live = row.slot.state is SlotState.LEASED and self._clock.now().timestamp() <= row.expiry
        submitted = row.slot.state is SlotState.SUBMITTED and row.sha256 == request.sha256
        if not live and not submitted:
            raise NoLease(f"the lease of step {slot.step}, index {slot.index} is over ({row.slot.state.value})")
        if request.size > (most := self._limits.of_work(row)):
            raise TooLarge(
                f"the file has {request.size} bytes, and work of this lease ({row.groups} groups, {row.max_units} "
                f"units) can have at most {most}",
                hint="the pool's owner can raise upload_bytes_per_unit and upload_bytes_per_group",
            )
        life_s = int(self._admitted_for.total_seconds())
        if live and not await self._slots.admit_file(row.id, request.sha256, life_s=life_s):
            raise NoLease(f"{MOST_FILES} different files were announced under this lease already; no more are allowed")

    async def _may_read(self, key: ObjectKey, reader: Address) -> bool:
        """Returns whether a signer may read an object.

        Any signer may read audit files, because verdicts are public, too. A node's files may be read by the node, the
        validators and the managers.
        """
        if key.audit or reader == key.owner:
            return True
        pool = await self._pool.get()
        return reader in pool.validators | pool.managers

    async def _found(self, owner: Address, key: ObjectKey, there: ObjectFacts, size: int) -> UploadTicket:
        if there.size != size:
            raise Conflict(
                f"{key} has {there.size} bytes in the store, and the request announces {size}",
                hint="announce the file's real size; if that was it, the store is broken: tell the pool's owner",
                code="other-object",
            )
        await self._uploads.done(owner, key, size=size)
        return UploadTicket(key=str(key), already_there=True)
