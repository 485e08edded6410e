"""Download links of submitted work: its file, and the audit file of its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from orchestrator.storage import ObjectStore
from orchestrator.store.run_rows import SlotRow
from protocol.errors import MusterError
from protocol.runtime.logs import get_logger
from protocol.wire.uploads import ObjectKey

AT_ONCE = 16
"""Maximum number of concurrent requests to the object store."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Links:
    """Size and download links of one work item; None where the store has no file."""

    size: int | None = None
    file: str | None = None
    audit: str | None = None


async def links_to(rows: Sequence[SlotRow], *, objects: ObjectStore, pool_id: int, life: timedelta) -> list[Links]:
    """Returns the links of work items, in the order of the rows.

    If the store is down, the links are empty, so that listings still work.
    """
    concurrent = asyncio.Semaphore(AT_ONCE)

    async def one(row: SlotRow) -> Links:
        async with concurrent:
            try:
                size, file = await read(ObjectKey(pool_id=pool_id, owner=row.node, sha256=row.sha256, audit=False))
                audit = None
                if row.judge is not None and row.audit_hash:
                    key = ObjectKey(pool_id=pool_id, owner=row.judge, sha256=row.audit_hash, audit=True)
                    _, audit = await read(key)
            except MusterError as error:
                _log.warning("no-link", key=row.key, code=error.code, detail=error.detail)
                return Links()
            return Links(size, file, audit)

    async def read(key: ObjectKey) -> tuple[int | None, str | None]:
        facts = await objects.head(key)
        return (None, None) if facts is None else (facts.size, await objects.presign_get(key, expires=life))

    return list(await asyncio.gather(*(one(row) for row in rows)))
