"""Who may put what into the pool's store, and who may read it."""

from __future__ import annotations

from collections import OrderedDict
from datetime import timedelta

from orchestrator.chain import PoolLedger
from orchestrator.membership import Standings
from orchestrator.pool_view import PoolView
from orchestrator.storage.interface import ObjectFacts, ObjectMissing, ObjectStore
from orchestrator.store.uploads import UploadStore
from protocol.clock import Clock
from protocol.errors import Conflict, Forbidden, TooLarge
from protocol.identifiers import Address
from protocol.signing import unix_ms
from protocol.wire.uploads import ObjectKey, ObjectLink, UploadKind, UploadRequest, UploadTicket

MOST_KNOWN = 4096
_GOOD_FOR_S = 10.0
"""How soon a change of a pool's validators is noticed."""


class UploadDesk:
    """Gives tickets to upload with, and links to read with.

    Args:
        pool_id: Whose store it is.
        store: Where objects lie.
        uploads: Counts.
        standings: Who is a member.
        pool: Who manages it.
        ledger: Who validates.
        clock: Whose time counts.
        most_bytes: The largest file.
        put_life: How long a ticket's URL is good.
        get_life: How long a link is good.
    """

    def __init__(
        self,
        *,
        pool_id: int,
        store: ObjectStore,
        uploads: UploadStore,
        standings: Standings,
        pool: PoolView,
        ledger: PoolLedger,
        clock: Clock,
        most_bytes: int,
        put_life: timedelta,
        get_life: timedelta,
    ) -> None:
        self._pool_id = pool_id
        self._store = store
        self._uploads = uploads
        self._standings = standings
        self._pool = pool
        self._ledger = ledger
        self._clock = clock
        self._most_bytes = most_bytes
        self._put_life = put_life
        self._get_life = get_life
        self._validators: OrderedDict[Address, tuple[float, bool]] = OrderedDict()

    async def ticket(self, owner: Address, request: UploadRequest) -> UploadTicket:
        """Says where to put a file, or that it is there already, which costs nothing.

        Raises:
            TooLarge: The file is.
            Forbidden: The owner is no member of the pool, or no validator for an audit file.
            Conflict: Other bytes than announced lie under this name, which no honest store lets happen.
            QuotaUsed: The owner has uploaded enough for now.
            StorageFull, StorageUnavailable: The store can't take it.
        """
        if request.size > self._most_bytes:
            raise TooLarge(
                f"the file has {request.size} bytes, this pool takes {self._most_bytes}",
                hint="make several smaller ones",
            )
        audit = request.kind is UploadKind.AUDIT
        await self._check_owner(owner, audit=audit)
        key = ObjectKey(pool_id=self._pool_id, owner=owner, sha256=request.sha256, audit=audit)
        if (there := await self._store.head(key)) is not None:
            return await self._found(owner, key, there, request.size)
        now = self._clock.now()
        await self._uploads.take(owner, key, size=request.size, now=now, expires=now + self._put_life)
        put = await self._store.presign_put(
            key, size=request.size, content_type=request.content_type, expires=self._put_life
        )
        return UploadTicket(
            key=str(key),
            already_there=False,
            url=put.url,
            headers=dict(put.headers),
            expires_ms=unix_ms(put.expires),
        )

    async def link(self, key: ObjectKey, *, reader: Address | None) -> ObjectLink:
        """Says where to read an object.

        Args:
            key: Which.
            reader: Who signed the request; None for the pool's owner.

        Raises:
            Forbidden: It is somebody else's work.
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
            if not await self._is_validator(owner):
                raise Forbidden(
                    f"{owner} is not a validator of pool {self._pool_id}",
                    hint="only validators upload audit files; `muster pool roles` says who is",
                    code="not-a-validator",
                )
            return
        standing = await self._standings.of(owner)
        if not standing.member or standing.banned:
            raise Forbidden(
                f"{owner} is not a member of pool {self._pool_id}",
                hint="join the pool again; a ban can be lifted by its manager",
                code="not-a-member",
                retryable=not standing.banned,
            )

    async def _may_read(self, key: ObjectKey, reader: Address) -> bool:
        """Verdicts are public, and so is what they rest on; work is its node's, and of those who judge or pay it."""
        if key.audit or reader == key.owner:
            return True
        return await self._is_validator(reader) or reader in (await self._pool.get()).managers

    async def _found(self, owner: Address, key: ObjectKey, there: ObjectFacts, size: int) -> UploadTicket:
        if there.size != size:
            raise Conflict(
                f"{key} has {there.size} bytes in the store, announced were {size}",
                hint="announce the file's real size; if that was it, the store is broken: tell the pool's owner",
                code="other-object",
            )
        await self._uploads.done(owner, key, size=size)
        return UploadTicket(key=str(key), already_there=True)

    async def _is_validator(self, who: Address) -> bool:
        now = self._clock.monotonic()
        known = self._validators.get(who)
        if known is not None and known[0] > now:
            return known[1]
        found = await self._ledger.is_validator(who)
        self._validators[who] = (self._clock.monotonic() + _GOOD_FOR_S, found)
        self._validators.move_to_end(who)
        if len(self._validators) > MOST_KNOWN:
            self._validators.popitem(last=False)
        return found
