"""A validator detects chain reorganisations with as few queries as possible."""

from __future__ import annotations

import pytest

from ledger.events.cursor_position import BlockRef
from ledger.events.source import Header
from protocol.errors import NotFound
from protocol.identifiers import Digest, digest
from validator.chain.reorgs import MOST_REMEMBERED, ReorgAwareCache, ReorgTracker


def name(branch: str, number: int) -> Digest:
    """Returns the hash of a block; the branches are equal up to block 10."""
    return digest(f"0x{ord(branch) if number > 10 else 0:04x}{number:060x}")


class Chain:
    """Two branches of a chain, one of which is current."""

    def __init__(self) -> None:
        self.branch, self.height, self.asked = "a", 10, 0

    async def block_hash(self, number: int) -> Digest:
        self.asked += 1
        if number > self.height:
            raise NotFound(f"no block {number}")
        return name(self.branch, number)

    def at(self, number: int, branch: str = "") -> Header:
        branch = branch or self.branch
        self.branch, self.height = branch, number
        ref = BlockRef(number=number, hash=name(branch, number))
        return Header(ref=ref, parent=name(branch, number - 1), time=number)


@pytest.mark.parametrize(
    ("second", "third", "branches", "asked"),
    [
        ((12, "a"), (12, "a"), 0, 0),
        ((12, "a"), (13, "a"), 0, 0),
        ((12, "a"), (20, "a"), 0, 1),
        ((12, "a"), (12, "b"), 1, 1),
        ((12, "a"), (13, "b"), 1, 1),
        ((12, "a"), (20, "b"), 1, 1),
        ((12, "a"), (11, "b"), 1, 1),
        ((12, "a"), (9, "a"), 1, 1),
        ((11, "a"), (11, "b"), 1, 1),
    ],
)
async def test_a_removed_block_is_noticed_and_an_extended_chain_causes_no_query(
    second: tuple[int, str], third: tuple[int, str], branches: int, asked: int
) -> None:
    chain = Chain()
    reorgs = ReorgTracker(chain)
    await reorgs.observe(chain.at(second[0] - 1))
    await reorgs.observe(chain.at(*second))
    assert (reorgs.mark().branch, chain.asked) == (0, 0)
    await reorgs.observe(chain.at(*third))
    assert (reorgs.mark().branch, reorgs.mark().newest, chain.asked) == (branches, third[0], asked)


async def test_an_answer_older_than_another_is_not_a_reorg() -> None:
    chain = Chain()
    reorgs = ReorgTracker(chain)
    early = chain.at(11)
    await reorgs.observe(chain.at(13))
    await reorgs.observe(early)
    assert (reorgs.mark().branch, reorgs.mark().newest) == (0, 13)


async def test_an_answer_is_cached_only_while_its_removal_would_be_noticed() -> None:
    chain = Chain()
    reorgs = ReorgTracker(chain)
    kept: ReorgAwareCache[str, int] = ReorgAwareCache(reorgs)
    kept.put("before any look", 1, block=1, mark=reorgs.mark())
    await reorgs.observe(chain.at(12))
    kept.put("old", 2, block=12, mark=reorgs.mark())
    kept.put("newer than the look", 3, block=13, mark=reorgs.mark())
    assert [kept.get(key) for key in ("before any look", "old", "newer than the look")] == [None, 2, None]
    slow = reorgs.mark()  # then a read takes a long time
    await reorgs.observe(chain.at(13, "b"))
    assert kept.get("old") is None
    kept.put("read on the other branch", 4, block=5, mark=slow)
    assert kept.get("read on the other branch") is None
    kept.put("new", 5, block=13, mark=reorgs.mark())
    assert kept.get("new") == 5


async def test_the_cache_is_bounded() -> None:
    chain = Chain()
    reorgs = ReorgTracker(chain)
    await reorgs.observe(chain.at(12))
    kept: ReorgAwareCache[int, int] = ReorgAwareCache(reorgs)
    for key in range(MOST_REMEMBERED + 1):
        kept.put(key, key, block=1, mark=reorgs.mark())
    assert (kept.get(0), kept.get(1), kept.get(MOST_REMEMBERED)) == (None, 1, MOST_REMEMBERED)
