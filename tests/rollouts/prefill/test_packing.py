"""Packing answers into passes: each once, within the capacity, with long prompts computed once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from rollouts.prefill.packing import LEAST_BEHIND_PROMPT, MOST_PADDING, PrefillItem, pack, row_length, stretches

LENGTHS = st.integers(1, 40)


def answer(prompt: int, length: int, *, kind: int = 0) -> PrefillItem:
    return PrefillItem(np.full(prompt, kind, np.int32), np.ones(length, np.int32))


@given(
    groups=st.lists(st.tuples(LENGTHS, st.lists(LENGTHS, min_size=1, max_size=6)), max_size=6),
    capacity=LENGTHS,
    row_capacity=st.one_of(st.none(), st.integers(1, 200)),
)
def test_every_answer_is_packed_once_and_no_pass_exceeds_its_capacity(
    groups: list[tuple[int, list[int]]], capacity: int, row_capacity: int | None
) -> None:
    answers = [answer(prompt, one, kind=kind) for kind, (prompt, lengths) in enumerate(groups) for one in lengths]
    packing = pack(answers, capacity=capacity, row_capacity=row_capacity)
    pieces = [piece for one in packing.passes for piece in one] + list(packing.long)
    in_rows = [place for row in packing.rows for place in row]
    shared = [place for piece in pieces for place in piece.answers]
    assert sorted(in_rows + shared) == list(range(len(answers)))
    for row in packing.rows:
        lengths = [row_length(answers[place]) for place in row]
        assert lengths[0] * len(row) <= (row_capacity or capacity)
        assert MOST_PADDING * (lengths[0] - min(lengths)) <= lengths[0] == max(lengths)
    for place in in_rows:
        assert LEAST_BEHIND_PROMPT * (len(answers[place].prompt) - 1) <= len(answers[place].output)
    for one in packing.passes:
        assert one
        tokens = sum(len(piece.prefix) + sum(len(answers[at].output) for at in piece.answers) for piece in one)
        assert tokens <= capacity
    for piece in pieces:
        assert piece.answers
        for place in piece.answers:
            assert np.array_equal(answers[place].prompt[:-1], piece.prefix)


@given(lengths=st.lists(LENGTHS, max_size=12), capacity=LENGTHS)
def test_answers_of_a_long_group_are_split_without_gaps(lengths: list[int], capacity: int) -> None:
    passes = stretches(lengths, capacity=capacity)
    for cuts in passes:
        assert sum(stop - start for _, start, stop in cuts) <= capacity
        assert len(cuts) == 1 or all(start == 0 and stop == lengths[number] for number, start, stop in cuts)
    every = [cut for cuts in passes for cut in cuts]
    for (number, _, stop), (following, start, _) in pairwise(every):
        assert (following, start) == ((number + 1, 0) if stop == lengths[number] else (number, stop))
    assert sum(stop - start for _, start, stop in every) == sum(lengths)


def test_answers_of_one_group_share_their_prompt_in_a_pass() -> None:
    answers = [answer(5, 3, kind=1), answer(5, 3, kind=2), answer(5, 4, kind=1)]
    assert not pack(answers, capacity=100).rows
    [[first, second]] = pack(answers, capacity=100).passes
    assert (first.answers, second.answers) == ((0, 2), (1,))


def test_a_long_prompt_is_computed_once_and_a_short_one_may_be_repeated() -> None:
    long = [answer(50, 30) for _ in range(4)]
    assert [piece.answers for piece in pack(long, capacity=100).long] == [(0, 1, 2, 3)]
    short = [answer(12, 30) for _ in range(4)]
    assert [[piece.answers for piece in one] for one in pack(short, capacity=104).passes] == [[(0, 1, 2)], [(3,)]]


def test_answers_much_longer_than_their_prompts_are_batched_in_rows_of_similar_length() -> None:
    answers = [answer(4, length, kind=length) for length in (30, 90, 31, 92, 60)]
    packing = pack(answers, capacity=60, row_capacity=200)
    assert packing.rows == ((3, 1), (4,), (2, 0))
    assert not packing.passes
    assert not packing.long


@pytest.mark.parametrize(("prompt", "length"), [(0, 1), (1, 0)])
def test_an_empty_prompt_or_answer_is_refused(prompt: int, length: int) -> None:
    with pytest.raises(InvalidInput, match="at least one token of prompt and answer"):
        answer(prompt, length)
