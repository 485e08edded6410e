"""Order of parked items, such that no node can hide the items of others behind its own. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from validator.domain.items import ParkedItem

MOST_LOOKED_AT = 10_000
"""Maximum number of parked items that are read. A node's stake bounds its open and parked work (decision 7)."""


def fairly(parked: Sequence[ParkedItem], *, limit: int) -> list[ParkedItem]:
    """Returns each node's oldest item, then each node's second, and so on, up to `limit` items.

    Args:
        parked: Items, longest parked first.
        limit: Maximum number of items.
    """
    before: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for place, each in enumerate(parked):
        ranked.append((before[each.item.work.node], place))
        before[each.item.work.node] += 1
    return [parked[place] for _, place in sorted(ranked)[:limit]]
