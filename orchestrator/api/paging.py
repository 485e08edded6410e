"""Pages of filtered listings, and the parameters that listings share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Annotated, TypeVar

from fastapi import Query

Item = TypeVar("Item")

READ_AT_ONCE = 500
"""Maximum number of items that a filtered listing reads from Redis at once."""

READS_PER_REQUEST = 20
"""Maximum number of such reads per request; the next request continues after the last item read."""


class Order(StrEnum):
    """Order of a listing."""

    OLDEST = "oldest"
    NEWEST = "newest"


Sort = Annotated[Order, Query(description="Whether the oldest or the newest item comes first")]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items")]

Read = Callable[[str | None, int], Awaitable[Sequence[tuple[str, Item | None]]]]
"""Function that returns up to a number of items after a position, with their positions; deleted items are None."""


async def read_page(
    read: Read[Item], *, after: str | None, limit: int, wanted: Callable[[Item], bool] | None
) -> tuple[list[Item], str | None]:
    """Returns a page of the wanted items, and the cursor of the next page.

    A page may have fewer items than the limit although it has a cursor, because the number of reads is bounded.

    Args:
        read: Reads the next items.
        after: Cursor of the previous page; None for the first page.
        limit: Maximum number of items.
        wanted: Filter; None for all items.
    """
    found: list[Item] = []
    size = limit + 1 if wanted is None else READ_AT_ONCE
    for _ in range(READS_PER_REQUEST):
        entries = await read(after, size)
        for position, item in entries:
            if item is not None and (wanted is None or wanted(item)):
                if len(found) == limit:
                    return found, after
                found.append(item)
            after = position
        if len(entries) < size:
            return found, None
    return found, after
