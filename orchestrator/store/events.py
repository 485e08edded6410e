"""The pool's events in Redis, in order of time; the newest 20,000 are kept."""

from __future__ import annotations

import re

from orchestrator.store.database import Database
from orchestrator.store.nodes import text_of
from protocol.errors import InvalidInput
from protocol.identifiers import address
from protocol.wire.pool import PoolEvent

_CURSOR = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")

START = "0-0"
"""Cursor before the first event."""


class EventStore:
    """Reads the pool's events; the Lua scripts write them.

    Args:
        database: Database of the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def after(self, cursor: str, *, limit: int) -> list[PoolEvent]:
        """Returns the events after a cursor, oldest first.

        Raises:
            InvalidInput: The cursor is malformed.
        """
        if not _CURSOR.fullmatch(cursor):
            raise InvalidInput(f"{cursor[:60]!r} is not a cursor of events", hint="use the cursor of an earlier answer")
        key = self._database.key("events")
        entries = await self._database.ask("XRANGE", key, f"({cursor}", "+", "COUNT", limit)
        return [_event(name.decode(), text_of(fields)) for name, fields in entries]

    async def last(self, *, limit: int) -> list[PoolEvent]:
        """Returns the newest events, oldest first."""
        entries = await self._database.ask("XREVRANGE", self._database.key("events"), "+", "-", "COUNT", limit)
        return [_event(name.decode(), text_of(fields)) for name, fields in reversed(entries)]

    async def newest(self) -> str:
        """Returns the cursor that points after the newest event."""
        last = await self.last(limit=1)
        return last[0].id if last else START


def _event(name: str, fields: dict[str, str]) -> PoolEvent:
    return PoolEvent(
        id=name,
        time_ms=int(fields["time"]),
        kind=fields["kind"],
        detail=fields["detail"],
        actor=fields["actor"],
        node=address(fields["node"]) if fields["node"] else None,
        task_id=fields["task"] or None,
        assignment_id=fields.get("assignment") or None,
    )
