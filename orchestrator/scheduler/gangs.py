"""Gang scheduling: plans groups of nodes that start a task together or not at all. No I/O."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from protocol.identifiers import Address
from protocol.wire.assignments import GroupPlace


@dataclass(frozen=True, slots=True)
class GangRank:
    """A rank in a group of nodes, with the node that holds or completed it."""

    group: str
    rank: int
    node: Address
    done: bool = False
    """True if the member completed its part; the rank needs no node any more."""


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Plan of a task's groups: ranks to assign, groups to dissolve, and counts of groups."""

    starts: tuple[tuple[Address, GroupPlace], ...]
    """Nodes to which the task is assigned now, each with its place in a group."""
    dissolved: tuple[str, ...]
    """Ids of groups whose members have to stop."""
    completed: int
    """Number of groups in which every rank is done."""
    complete: int
    """Number of groups in which, after this plan, every rank has a node or is done."""
    missing: int
    """Number of members for which the plan found no node."""


def plan_gang(
    *, task_id: str, size: int, wanted: int | None, filled_ranks: Sequence[GangRank], candidates: Sequence[Address]
) -> GangPlan:
    """Plans the changes of one task's groups.

    A lost member is replaced at its own rank, and the other members stay. A new group starts only when enough nodes for
    all its ranks are free. If several groups lack members, all but the fullest are dissolved, so that their nodes can
    complete that one.

    Args:
        task_id: Id of the task, from which the ids of new groups are derived.
        size: Members per group.
        wanted: Total number of groups, including completed ones; None for as many as the nodes can fill.
        filled_ranks: Ranks that have a node or are done now.
        candidates: Nodes that may join, best first; none of them holds a rank.
    """
    groups: dict[str, dict[int, GangRank]] = defaultdict(dict)
    for filled in filled_ranks:
        groups[filled.group][filled.rank] = filled
    completed = sum(_is_completed(ranks, size) for ranks in groups.values())
    # The fullest group comes first; ties are broken by id, so that the plan is deterministic.
    open_groups = sorted(
        (group for group, ranks in groups.items() if not _is_completed(ranks, size)),
        key=lambda group: (-len(groups[group]), group),
    )
    room = None if wanted is None else max(0, wanted - completed)
    dissolved = [] if room is None else open_groups[room:]
    open_groups = open_groups if room is None else open_groups[:room]

    free = iter(candidates)
    starts: list[tuple[Address, GroupPlace]] = []
    incomplete = [group for group in open_groups if not _fill(group, groups[group], size, free, starts)]
    dissolved += incomplete[1:]

    left = list(free)
    complete = completed + len(open_groups) - len(incomplete)
    names = _new_names(task_id, taken=groups.keys())
    # Incomplete groups have taken free nodes first. If one is still incomplete, no node is left for a new group.
    while len(left) >= size and (room is None or complete - completed < room):
        group = next(names)
        starts += [(node, GroupPlace(id=group, rank=rank, size=size)) for rank, node in enumerate(left[:size])]
        left = left[size:]
        complete += 1
    return GangPlan(tuple(starts), tuple(dissolved), completed, complete, _missing(size, wanted, complete, left))


def _is_completed(ranks: dict[int, GangRank], size: int) -> bool:
    return len(ranks) == size and all(rank.done for rank in ranks.values())


def _fill(
    group: str,
    ranks: dict[int, GangRank],
    size: int,
    free: Iterator[Address],
    starts: list[tuple[Address, GroupPlace]],
) -> bool:
    for rank in range(size):
        if rank in ranks:
            continue
        node = next(free, None)
        if node is None:
            return False
        starts.append((node, GroupPlace(id=group, rank=rank, size=size)))
    return True


def _missing(size: int, wanted: int | None, complete: int, left: Collection[Address]) -> int:
    if wanted is None or complete >= wanted:
        return 0
    return max(1, (wanted - complete) * size - len(left))


def _new_names(task_id: str, *, taken: Collection[str]) -> Iterator[str]:
    number = 0
    while True:
        name = hashlib.sha256(f"muster-group {task_id} {number}".encode()).hexdigest()[:32]
        number += 1
        if name not in taken:
            yield name
