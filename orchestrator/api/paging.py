"""Pages of filtered listings, and the parameters that listings share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Annotated, Generic, NamedTuple, TypeVar

from fastapi import Query

from protocol.errors import Unprocessable
from protocol.wire.base import MAX_INT64

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
CreatedAfter = Annotated[
    int | None, Query(ge=0, le=MAX_INT64, description="Only items of a later time, in Unix milliseconds")
]
CreatedBefore = Annotated[
    int | None, Query(ge=0, le=MAX_INT64, description="Only items of an earlier time, in Unix milliseconds")
]

Read = Callable[[str | None, int], Awaitable[Sequence[tuple[str, Item | None]]]]
"""Function that returns up to a number of items after a position, with their positions.

Deleted and unwanted items are None."""


class Page(NamedTuple, Generic[Item]):
    """A page of a listing."""

    items: list[Item]
    following: str | None
    """Cursor of the next page; None if there is none."""
    position: str | None
    """Position of the last item that was read, wanted or not; the page's own cursor if none was read."""


async def read_page(
    read: Read[Item],
    *,
    after: str | None,
    limit: int,
    turns: asyncio.Semaphore | None,
    wanted: Callable[[Item], bool] | None = None,
    at_once: int | None = None,
) -> Page[Item]:
    """Returns a page of the wanted items.

    A page may have fewer items than the limit although another one follows, because the number of reads is bounded.

    Args:
        read: Reads the next items.
        after: Cursor of the previous page; None for the first page.
        limit: Maximum number of items.
        turns: Limits concurrent filtered listings; None if the listing has no filter.
        wanted: Filter; None if `read` filters, or for all items.
        at_once: Maximum number of items that a filtered listing reads at once; default: `READ_AT_ONCE`.
    """
    if turns is None:
        return await _read_page(read, after=after, limit=limit, size=limit + 1, wanted=wanted)
    async with turns:
        return await _read_page(read, after=after, limit=limit, size=at_once or READ_AT_ONCE, wanted=wanted)


async def _read_page(
    read: Read[Item], *, after: str | None, limit: int, size: int, wanted: Callable[[Item], bool] | None
) -> Page[Item]:
    found: list[Item] = []
    for _ in range(READS_PER_REQUEST):
        entries = await read(after, size)
        for position, item in entries:
            if item is not None and (wanted is None or wanted(item)):
                if len(found) == limit:
                    return Page(found, after, after)
                found.append(item)
            after = position
        if len(entries) < size:
            return Page(found, None, after)
        await asyncio.sleep(0)  # lets other requests run, also if the answer of Redis was there at once
    return Page(found, after, after)


def split_label(label: str) -> tuple[str, str]:
    """Returns name and value of the filter `label`.

    Raises:
        Unprocessable: The filter has no equals sign.
    """
    name, equals, value = label.partition("=")
    if not equals:
        raise Unprocessable(
            f"the filter {label[:60]!r} is not of the form name=value",
            fields={"query.label": "not of the form name=value"},
            hint="write label=name%3Dvalue, such as label=zone%3Deu",
        )
    return name, value
