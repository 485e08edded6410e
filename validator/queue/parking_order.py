"""Orders parked items so that a node with many parked items can't hide the items of other nodes. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from validator.domain.items import ParkedItem

MOST_LOOKED_AT = 10_000
"""Maximum number of parked items that are read from Redis.

The stake of a provider limits the open work of its nodes, and parked work is open work (decision 7). So usually fewer
items are parked.
"""


def interleaved_by_node(parked: Sequence[ParkedItem], *, limit: int) -> list[ParkedItem]:
    """Returns each node's oldest item, then each node's second, and so on, up to `limit` items.

    Args:
        parked: Parked items, the longest parked first.
        limit: Maximum number of returned items.
    """
    before: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for place, each in enumerate(parked):
        ranked.append((before[each.item.work.node], place))
        before[each.item.work.node] += 1
    return [parked[place] for _, place in sorted(ranked)[:limit]]
