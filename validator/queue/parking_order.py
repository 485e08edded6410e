"""Order of parked items in a list, so that no node can hide other nodes' items.

No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from validator.domain.items import ParkedItem

MOST_LOOKED_AT = 10_000
"""Maximum number of parked items that are read from Redis. A node's stake limits its open and parked work.

Decision 7 has the reasons.
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
