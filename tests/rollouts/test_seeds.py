"""The seed of a slot and the values derived from it, with vectors for other implementations."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import islice, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest, address, digest, run_id
from rollouts.seeds import draw_targets, prompt_positions, slot_seed

RUN = run_id("vectors")
NODE = address("0x" + "a1" * 20)
VERSION = digest("0x" + "b2" * 32)
BEACON = digest("0x" + "c3" * 32)
SALT = digest("0x" + "e5" * 32)
CHAIN, POOL = 31337, 5
SEEDS = st.binary(min_size=32, max_size=32)


def seed_of(
    *,
    run: Digest = RUN,
    step: int = 7,
    node: Address = NODE,
    index: int = 3,
    version: Digest = VERSION,
    beacon: Digest = BEACON,
    salt: Digest = SALT,
    chain: int = CHAIN,
    pool: int = POOL,
) -> bytes:
    return slot_seed(
        chain_id=chain,
        pool_id=pool,
        run_id=run,
        step=step,
        node=node,
        index=index,
        digest=version,
        beacon=beacon,
        salt=salt,
    )


def first_positions(seed: bytes, count: int, wanted: int) -> list[int]:
    return list(islice(prompt_positions(seed, count), wanted))


def test_the_seed_is_the_sha_256_of_193_bytes_of_fixed_layout() -> None:
    message = (
        b"muster-rollout-v2"
        b"\0\0\0\0\0\0\x7a\x69"
        b"\0\0\0\0\0\0\0\x05"
        + hashlib.sha256(b"muster-run-v1vectors").digest()
        + b"\0\0\0\0\0\0\0\x07"
        + b"\xa1" * 20
        + b"\0\0\0\x03"
        + b"\xb2" * 32
        + b"\xc3" * 32
        + b"\xe5" * 32
    )
    assert len(message) == 193
    assert seed_of() == hashlib.sha256(message).digest()
    assert seed_of().hex() == "e64091c87cbedbf63cc44f806ed3cf455634100cd8d89f9a343e410a8869abfc"


def test_every_field_changes_the_seed() -> None:
    other = digest("0x" + "d4" * 32)
    seeds = [
        seed_of(),
        seed_of(run=run_id("another")),
        seed_of(step=8),
        seed_of(node=address("0x" + "a2" * 20)),
        seed_of(index=4),
        seed_of(version=other),
        seed_of(beacon=other),
        seed_of(salt=other),
        seed_of(chain=CHAIN + 1),
        seed_of(pool=POOL + 1),
    ]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize(("step", "index"), [(-1, 0), (1 << 64, 0), (0, -1), (0, 1 << 32)])
def test_a_step_or_index_out_of_range_is_refused(step: int, index: int) -> None:
    with pytest.raises(InvalidInput, match="no slot has"):
        seed_of(step=step, index=index)


@pytest.mark.parametrize(("chain", "pool"), [(-1, 1), (1 << 64, 1), (1, -1), (1, 1 << 64)])
def test_a_chain_or_pool_out_of_range_is_refused(chain: int, pool: int) -> None:
    with pytest.raises(InvalidInput, match="no slot is of chain"):
        seed_of(chain=chain, pool=pool)


def test_the_prompts_and_targets_of_a_known_seed() -> None:
    assert first_positions(seed_of(), 1000, 8) == [390, 783, 375, 837, 807, 400, 627, 512]
    assert draw_targets(seed_of(), (1, 3, 5, 7), 8) == [3, 7, 7, 1, 1, 5, 1, 3]


@given(seed=SEEDS, count=st.integers(1, 50), groups=st.integers(1, 120))
def test_no_prompt_repeats_before_all_others_have_been_drawn(seed: bytes, count: int, groups: int) -> None:
    positions = first_positions(seed, count, groups)
    assert len(positions) == groups
    for begin in range(0, groups, count):
        stretch = positions[begin : begin + count]
        assert len(set(stretch)) == len(stretch)
        assert set(stretch) <= set(range(count))


@given(seed=SEEDS, count=st.integers(1, 2**63), groups=st.integers(1, 30))
def test_a_larger_draw_begins_with_the_prompts_of_a_smaller_one(seed: bytes, count: int, groups: int) -> None:
    assert first_positions(seed, count, groups + 1)[:groups] == first_positions(seed, count, groups)


def test_a_table_of_a_million_prompts_can_be_drawn_completely() -> None:
    positions = first_positions(seed_of(), 2**20 - 7, 2000)
    assert len(set(positions)) == 2000
    assert sorted(first_positions(seed_of(), 3000, 3000)) == list(range(3000))


def test_every_order_of_three_prompts_is_equally_likely() -> None:
    """6,000 fixed seeds: each of six orders is expected 1,000 times; 5 standard deviations are 144."""
    seen = Counter(tuple(first_positions(hashlib.sha256(b"%d" % i).digest(), 3, 3)) for i in range(6000))
    assert set(seen) == set(permutations(range(3)))
    assert all(abs(count - 1000) < 144 for count in seen.values())


def test_targets_are_equally_likely_and_independent_of_the_prompts() -> None:
    """8,000 fixed draws of 4 targets by 2 prompts: 1,000 expected in each cell; 5 standard deviations are 148."""
    cells: Counter[tuple[int, int]] = Counter()
    for i in range(8000):
        seed = hashlib.sha256(b"targets %d" % i).digest()
        cells[first_positions(seed, 2, 1)[0], draw_targets(seed, (1, 3, 5, 7), 1)[0]] += 1
    assert len(cells) == 8
    assert all(abs(count - 1000) < 148 for count in cells.values())


def test_a_set_that_does_not_divide_two_to_the_64_is_drawn_without_bias() -> None:
    """Of 3 · 2^62 prompts a plain remainder would draw the first third twice as often as the others."""
    count = 3 << 62
    thirds = Counter(first_positions(hashlib.sha256(b"%d" % i).digest(), count, 1)[0] // (1 << 62) for i in range(3000))
    assert all(abs(thirds[third] - 1000) < 130 for third in range(3))


def test_repeated_targets_are_weighted_by_their_number() -> None:
    drawn = Counter(draw_targets(seed_of(), (1, 1, 1, 9), 4000))
    assert abs(drawn[9] - 1000) < 140


@pytest.mark.parametrize("groups", [0, -1, (1 << 20) + 1])
def test_a_slot_with_no_groups_or_too_many_is_refused(groups: int) -> None:
    with pytest.raises(InvalidInput, match="a slot can't have"):
        draw_targets(seed_of(), (1,), groups)


def test_drawing_from_an_empty_set_or_a_short_seed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="0 eligible prompts"):
        first_positions(seed_of(), 0, 1)
    with pytest.raises(InvalidInput, match="no target lengths"):
        draw_targets(seed_of(), (), 1)
    with pytest.raises(InvalidInput, match="seed can't have 5 bytes"):
        first_positions(b"short", 10, 1)


def test_neighbouring_slots_share_no_prompts() -> None:
    draws = [first_positions(seed_of(index=index), 10**9, 5) for index in range(50)]
    assert all(not set(one) & set(next_one) for one, next_one in pairwise(draws))
