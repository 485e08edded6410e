"""The pool's events in Redis, in order of time; the newest 100,000 are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from orchestrator.store.database import Database
from orchestrator.store.nodes import text_of
from protocol.errors import InvalidInput, NotFound
from protocol.identifiers import address
from protocol.wire.events import PoolEvent

_CURSOR = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")

Wanted = Callable[[Mapping[str, str]], bool]
"""Filter of an event's fields as stored: `time`, `kind`, `node`, `task` and `assignment`."""

START = "0-0"
"""Cursor before the first event."""

_MOST_COUNT = (1 << 64) - 1
"""Maximum sequence number in an event's id `MILLISECONDS-SEQUENCE` (Redis streams)."""


class EventsExpired(NotFound):
    """Events after the reader's position were deleted, because only the newest ones are kept."""

    code = "events-expired"
    status = 410


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
        return [event for _, event in await self.entries_after(cursor, limit=limit) if event is not None]

    async def entries_after(
        self, cursor: str, *, limit: int, wanted: Wanted | None = None
    ) -> list[tuple[str, PoolEvent | None]]:
        """Returns the ids after a cursor, oldest first, each with its event; None for an unwanted one.

        Args:
            cursor: Id of the event before the first one.
            limit: Maximum number of ids.
            wanted: Filter of an event's fields. Unwanted events are not parsed, which takes most of the time of a read.

        Raises:
            InvalidInput: The cursor is malformed.
        """
        key = self._database.key("events")
        entries = await self._database.ask("XRANGE", key, f"({_checked(cursor)}", "+", "COUNT", limit)
        return _parsed(entries, wanted)

    async def before(self, cursor: str | None, *, limit: int) -> list[PoolEvent]:
        """Returns the events before a cursor, newest first; without a cursor, the newest ones.

        Raises:
            InvalidInput: The cursor is malformed.
        """
        return [event for _, event in await self.entries_before(cursor, limit=limit) if event is not None]

    async def entries_before(
        self, cursor: str | None, *, limit: int, wanted: Wanted | None = None
    ) -> list[tuple[str, PoolEvent | None]]:
        """Returns the ids before a cursor, newest first, like `entries_after`."""
        high = "+"
        if cursor is not None:
            high = f"({_checked(cursor)}"
        entries = await self._database.ask("XREVRANGE", self._database.key("events"), high, "-", "COUNT", limit)
        return _parsed(entries, wanted)

    async def around(self, time_ms: int) -> tuple[str, str | None]:
        """Returns ids of the last event up to a time, and of the first one after it; of START and None without one.

        The time of an event is the orchestrator's and its id has that of Redis, so the search compares times of events.
        Events of several orchestrators are in order only as far as their clocks agree, so a caller adds a margin. Of
        events that Redis added in one millisecond the search compares the first one only.
        """
        oldest, newest = await self.after(START, limit=1), await self.before(None, limit=1)
        if not oldest or not newest:
            return START, None
        last, first = START, None
        low, high = _number(oldest[0].id)[0], _number(newest[0].id)[0] + 1  # in milliseconds of Redis
        while low < high:
            middle = (low + high) // 2
            probe = (await self.after(f"{middle - 1}-{_MOST_COUNT}", limit=1))[:1]
            if not probe:
                high = middle
            elif probe[0].time_ms > time_ms:
                high, first = middle, probe[0].id
            else:
                low, last = max(middle, _number(probe[0].id)[0]) + 1, probe[0].id
        return last, first

    async def newest(self) -> str:
        """Returns the cursor that points after the newest event."""
        last = await self.before(None, limit=1)
        return last[0].id if last else START

    async def forget_before(self, time_ms: int, *, limit: int) -> int:
        """Deletes at most `limit` of the oldest events, those before a time; returns their number.

        The newest event is kept, so that a reader that has read it misses nothing.

        Args:
            time_ms: The time, in Unix milliseconds.
            limit: Maximum number of events to delete.
        """
        key = self._database.key("events")
        entries = await self._database.ask("XRANGE", key, "-", "+", "COUNT", limit + 1)
        old = next(
            (number for number, (_, fields) in enumerate(entries) if int(fields[b"time"]) >= time_ms),
            len(entries) - 1,
        )
        if old > 0:
            await self._database.ask("XTRIM", key, "MINID", entries[old][0])
        return max(0, old)

    async def check_kept(self, cursor: str) -> None:
        """Checks that all events after a cursor are still kept.

        Raises:
            EventsExpired: The event at the cursor was deleted, so that later ones may be missing, too.
            InvalidInput: The cursor is malformed.
        """
        if _checked(cursor) == START:
            return
        oldest = await self.after(START, limit=1)
        if not oldest or is_earlier(cursor, oldest[0].id):
            raise EventsExpired(
                f"the event {cursor} is no longer kept; the oldest one is {oldest[0].id if oldest else 'none'}",
                hint="read the present state (/v1/nodes, /v1/tasks, /v1/assignments), then follow anew",
            )


def _parsed(
    entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]], wanted: Wanted | None
) -> list[tuple[str, PoolEvent | None]]:
    rows = ((name.decode(), text_of(fields)) for name, fields in entries)
    return [(name, _event(name, fields) if wanted is None or wanted(fields) else None) for name, fields in rows]


def is_earlier(one: str, other: str) -> bool:
    """Returns whether one id is that of an earlier event than the other."""
    return _number(one) < _number(other)


def _checked(cursor: str) -> str:
    if not _CURSOR.fullmatch(cursor) or max(_number(cursor)) >= 1 << 64:
        raise InvalidInput(f"{cursor[:60]!r} is not the id of an event", hint="use an id of an earlier answer")
    return cursor


def _number(cursor: str) -> tuple[int, int]:
    time, _, count = cursor.partition("-")
    return int(time), int(count)


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
