"""Pages of filtered listings, and the parameters that listings share."""

from __future__ import annotations

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
"""Function that returns up to a number of items after a position, with their positions; deleted items are None."""


class Page(NamedTuple, Generic[Item]):
    """A page of a listing."""

    items: list[Item]
    following: str | None
    """Cursor of the next page; None if there is none."""
    position: str | None
    """Position of the last item that was read, wanted or not; the page's own cursor if none was read."""


async def read_page(
    read: Read[Item], *, after: str | None, limit: int, wanted: Callable[[Item], bool] | None
) -> Page[Item]:
    """Returns a page of the wanted items.

    A page may have fewer items than the limit although another one follows, because the number of reads is bounded.

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
                    return Page(found, after, after)
                found.append(item)
            after = position
        if len(entries) < size:
            return Page(found, None, after)
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
