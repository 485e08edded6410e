"""Layout of a prefill's steps, with a cache that remembers which tokens each slot stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.engines.vllm.prefill_steps import PrefillStep, steps
from rollouts.errors import OutOfMemory
from rollouts.prefill import PrefillItem

BLOCK = 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


def item(prompt: Sequence[int], output: Sequence[int]) -> PrefillItem:
    return PrefillItem(np.array(prompt, np.int32), np.array(output, np.int32))


def compute(items: Sequence[PrefillItem], blocks: int, tokens_at_once: int) -> list[PrefillStep]:
    """Carries out all steps and checks that each token sees the keys and values of exactly the tokens before it."""
    cache: dict[int, tuple[int, ...]] = {}
    laid_out = list(steps(items, blocks=blocks, block=BLOCK, tokens_at_once=tokens_at_once))
    for step in laid_out:
        for cleared in step.partial.tolist():
            for slot in range(cleared * BLOCK, (cleared + 1) * BLOCK):
                cache.pop(slot, None)
        sequences = _sequences(step, cache)
        slots = step.writes_2m[1].tolist()
        assert len({*slots}) == len(slots), "no slot is written twice"
        assert min(slots) >= BLOCK, "block 0 is vLLM's"
        for row, slot in step.writes_2m.T.tolist():
            cache[slot] = sequences[row]
        for row, slots_of_row in _seen(step):
            assert [cache[slot] for slot in slots_of_row] == [
                sequences[row][: end + 1] for end in range(len(slots_of_row))
            ]
        wanted = iter(step.wanted_k.tolist())
        for span in step.spans:
            prompt, output = items[span.answer].prompt.tolist(), items[span.answer].output.tolist()
            assert (span.start, span.stop) == (0, len(output))
            for drawn in range(len(output)):
                assert sequences[next(wanted)] == (*prompt, *output[:drawn])
        assert next(wanted, None) is None
    assert sorted(span.answer for step in laid_out for span in step.spans) == list(range(len(items)))
    return laid_out


def _seen(step: PrefillStep) -> list[tuple[int, list[int]]]:
    """Returns each token's index and the slots of its sequence up to itself."""
    seen = []
    for run, blocks in enumerate(step.blocks_rw.tolist()):
        for row in range(step.starts[run], step.starts[run + 1]):
            length = int(step.lengths_r[run]) - (int(step.starts[run + 1]) - row) + 1
            assert step.positions_n[row] == length - 1
            seen.append((row, [blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(length)]))
    return seen


def _sequences(step: PrefillStep, cache: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Returns the tokens up to each token of a step: those written earlier, and those of this step."""
    known = dict(cache)
    found: list[tuple[int, ...]] = []
    writes: dict[int, list[int]] = {}
    for row, slot in step.writes_2m.T.tolist():
        writes.setdefault(row, []).append(slot)
    for row, slots in _seen(step):
        before = known[slots[-2]] if len(slots) > 1 else ()
        found.append((*before, int(step.tokens_n[row])))
        for slot in writes[row]:
            known[slot] = found[-1]
    return found


@settings(max_examples=300)
@given(
    answers=st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=12),
    spare=st.integers(0, 30),
    tokens_at_once=st.integers(1, 60),
)
def test_every_token_sees_exactly_the_tokens_before_it(
    answers: list[tuple[list[int], list[int]]], spare: int, tokens_at_once: int
) -> None:
    items = [item(*one) for one in answers]
    needed = max(-(-len(one.prompt) // BLOCK) + -(-(len(one.prompt) + len(one.output)) // BLOCK) for one in items)
    for step in compute(items, 1 + needed + spare, tokens_at_once):
        assert len(step.tokens_n) <= tokens_at_once or len(step.spans) == 1


PROMPT = [*range(10)]


@pytest.mark.parametrize(
    ("answers", "tokens_at_once", "computed"),
    [
        ([(PROMPT, [1] * 5)] * 4, 100, [9 + 4 * 5]),
        ([(PROMPT, [1] * 5)] * 4, 20, [9 + 2 * 5, 1 + 2 * 5]),
        ([(PROMPT, [1]), (PROMPT[:6], [2]), ([*PROMPT[:7], 0, 0, 0], [3])], 100, [9 + 2 + 3]),
        ([(PROMPT, [1]), ([7], [2] * 3)], 100, [9 + 1 + 3]),
    ],
    ids=[
        "a group",
        "a group of two steps repeats a part of a block",
        "prompts that begin alike",
        "no common beginning",
    ],
)
def test_common_beginnings_are_computed_once(
    answers: list[tuple[list[int], list[int]]], tokens_at_once: int, computed: list[int]
) -> None:
    laid_out = compute([item(*one) for one in answers], 60, tokens_at_once)
    assert [len(step.tokens_n) for step in laid_out] == computed


def test_an_answer_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(OutOfMemory, match="needs 3 more blocks of 4 keys and values, but 1 are free"):
        compute([item(PROMPT, [1] * 3)], 2, 100)
