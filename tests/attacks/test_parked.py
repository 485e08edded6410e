"""One node cannot fill the list of parked files so that those of other nodes are not shown."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from protocol.identifiers import Address, address
from tests.kit.submissions import work
from validator.domain.items import Item, ItemKind, ParkedItem
from validator.queue.parking_order import interleaved_by_node

FLOOD, HONEST, OTHER = (address("0x" + digits * 20) for digits in ("a1", "b2", "c3"))


def parked(number: int, node: Address) -> ParkedItem:
    item = Item(work=replace(work(number), node=node), kind=ItemKind.FIRST, deadline_s=1000, seen_ms=1)
    return ParkedItem(item=item, parked_ms=number, code="no-calibration", why="", hint="")


def test_a_node_with_a_thousand_parked_files_does_not_hide_other_nodes() -> None:
    flood = [parked(number, FLOOD) for number in range(1000)]
    late = [parked(1000, HONEST), parked(1001, OTHER), parked(1002, HONEST)]
    shown = interleaved_by_node([*flood, *late], limit=6)
    assert [(each.item.work.node, each.parked_ms) for each in shown] == [
        (FLOOD, 0), (HONEST, 1000), (OTHER, 1001), (FLOOD, 1), (HONEST, 1002), (FLOOD, 2),
    ]  # fmt: skip


@given(st.lists(st.sampled_from([FLOOD, HONEST, OTHER]), max_size=40), st.integers(1, 50))
def test_parked_files_are_shown_in_full_if_they_fit_and_else_at_least_one_per_node(
    nodes: list[Address], limit: int
) -> None:
    every = [parked(number, node) for number, node in enumerate(nodes)]
    shown = interleaved_by_node(every, limit=limit)
    assert len(shown) == min(limit, len(every))
    assert len({each.item.work.node for each in shown}) == min(limit, len(set(nodes)))
    for node in set(nodes):
        mine = [each.parked_ms for each in shown if each.item.work.node == node]
        assert mine == sorted(mine), "the longest parked first"
