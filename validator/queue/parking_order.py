"""In which order parked work is shown: no node can hide the others' behind its own. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from validator.domain.items import ParkedItem

MOST_LOOKED_AT = 10_000
"""Of all that is parked. A node has no more open work than its stake covers (decision 7), and parked work is open."""


def fairly(parked: Sequence[ParkedItem], *, limit: int) -> list[ParkedItem]:
    """Every node's oldest first, then every node's second, and so on, until there are `limit`.

    Args:
        parked: Longest parked first.
        limit: So many are wanted.
    """
    before: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for place, each in enumerate(parked):
        ranked.append((before[each.item.work.node], place))
        before[each.item.work.node] += 1
    return [parked[place] for _, place in sorted(ranked)[:limit]]
