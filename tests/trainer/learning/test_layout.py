"""Every answer is in the rows once, attends only to its prompt and itself, and has the same logits as alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from rollouts.precision import Dtype
from rollouts.turns import Turn, interleave
from tests.kit.tiny_model import tiny_folder
from tests.kit.training_groups import as_dialogues, fresh, made_groups
from trainer.learning.forward import answer_logits
from trainer.learning.layout import PREFIX, Layout, lay_out
from trainer.learning.packing import NOTHING

LAYOUTS = st.sampled_from(Layout)
WIDE = 1 << 20
"""A model width at which attention costs nothing beside the matrices, so `shared` has the fewest possible tokens."""
WIDTHS = st.sampled_from([1, 8, WIDE])


@given(
    *(LAYOUTS, st.integers(1, 4), st.integers(1, 5), st.integers(16, 40), st.integers(1, 3), WIDTHS),
    st.integers(0, 99),
    st.booleans(),
)
def test_every_answer_is_in_the_rows_once_after_its_own_prompt(
    layout: Layout, count: int, samples: int, row_tokens: int, rows_at_once: int, width: int, seed: int, dialogues: bool
) -> None:
    groups = made_groups(count, samples=samples, seed=seed)
    if dialogues:  # of at most 9 + 7 + 6 * 3 tokens
        groups, row_tokens = as_dialogues(groups, seed=seed), row_tokens + 18
    answers = [(group.prompt_tokens, each) for group in groups for each in group.samples]
    found: list[int] = []
    for rows in lay_out(groups, layout=layout, row_tokens=row_tokens, rows_at_once=rows_at_once, width=width):
        assert rows.tokens.shape[1] <= row_tokens
        assert rows.tokens.size <= max(row_tokens * rows_at_once, rows.tokens.shape[1])
        seen, flat, place = rows.mask.reshape(-1, rows.tokens.shape[1]), rows.tokens.ravel(), 0
        assert seen.any(axis=1).all(), "a token that attends to nothing makes softmax NaN"
        for answer in rows.answers.tolist():
            prompt, sample = answers[answer]
            whole = np.concatenate([prompt, interleave(sample.output_tokens, sample.turns)])
            for token, drawn in zip(sample.output_tokens, sample.places, strict=True):
                position = len(prompt) - 1 + drawn  # the input before the drawn token
                assert whole[position + 1] == token
                spot = rows.places[place]
                row = spot // rows.tokens.shape[1]
                assert rows.positions.ravel()[spot] == position
                assert flat[spot] == whole[position]
                assert rows.tokens[row][seen[spot]].tolist() == whole[: position + 1].tolist()
                place += 1
        assert place == len(rows.places)
        found += rows.answers.tolist()
    assert sorted(found) == list(range(len(answers)))


@given(LAYOUTS, WIDTHS, st.integers(0, 99))
def test_dialogues_of_one_turn_and_single_answers_have_equal_layouts(layout: Layout, width: int, seed: int) -> None:
    """All inputs of a single answer produce its tokens, as before there were dialogues."""
    singles = made_groups(seed=seed)
    talks = [
        replace(
            group,
            samples=tuple(
                replace(one, turns=(Turn(len(one.output_tokens), np.zeros(0, np.int32)),)) for one in group.samples
            ),
        )
        for group in singles
    ]
    first, second = (
        lay_out(groups, layout=layout, row_tokens=32, rows_at_once=2, width=width) for groups in (singles, talks)
    )
    lengths = [len(one.output_tokens) for group in singles for one in group.samples]
    for one, other in zip(first, second, strict=True):
        for name in ("tokens", "positions", "pieces", "owners", "answers", "places"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        owned = [np.flatnonzero(one.owners.ravel() == answer) for answer in one.answers]
        assert np.array_equal(one.places, np.concatenate(owned))
        assert [len(each) for each in owned] == [lengths[answer] for answer in one.answers]


@given(LAYOUTS, WIDTHS, st.integers(0, 99))
def test_equal_groups_have_equal_layouts(layout: Layout, width: int, seed: int) -> None:
    first, second = (
        lay_out(made_groups(seed=seed), layout=layout, row_tokens=32, rows_at_once=2, width=width) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.places, other.places)


def test_a_prompt_is_stored_once_per_group_and_row() -> None:
    groups = made_groups(1, samples=8, prompt=(10, 10), output=(5, 5))
    for row_tokens, rows_wanted in ((64, 1), (49, 1), (48, 2), (19, 4), (14, 8)):
        (rows,) = lay_out(groups, layout=Layout.SHARED, row_tokens=row_tokens, rows_at_once=64, width=WIDE)
        assert len(rows.tokens) == rows_wanted
        assert ((rows.owners == PREFIX) & (rows.pieces != NOTHING)).sum() == 9 * rows_wanted


@pytest.mark.parametrize(
    ("prompt", "output", "width", "rows_wanted"),
    [
        (200, 10, 128, (2, 279)),  # short answers to long prompts: all share one prompt
        (20, 512, 128, (16, 531)),  # long answers to short prompts: none share one
        (60, 512, 128, (16, 571)),
        (60, 512, 4096, (8, 1083)),  # two save tokens, which cost more in a wide model
        (200, 100, 128, (4, 599)),
    ],
)
def test_the_number_of_answers_sharing_a_prompt_minimises_the_cost(
    prompt: int, output: int, width: int, rows_wanted: tuple[int, int]
) -> None:
    groups = made_groups(2, samples=8, prompt=(prompt, prompt), output=(output, output))
    (rows,) = lay_out(groups, layout=Layout.SHARED, row_tokens=8192, rows_at_once=64, width=width)
    assert rows.tokens.shape == rows_wanted


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 60), st.integers(1, 60), st.integers(1, 40))
def test_sharing_never_costs_more_than_packing(count: int, samples: int, prompt: int, output: int, width: int) -> None:
    groups = made_groups(count, samples=samples, prompt=(1, prompt), output=(1, output))

    def cost(layout: Layout) -> int:
        found = lay_out(groups, layout=layout, row_tokens=4096, rows_at_once=4096, width=width)
        return sum(rows.tokens.size * (6 * width + rows.tokens.shape[1]) for rows in found)

    assert cost(Layout.SHARED) <= cost(Layout.PACKED)


def test_rows_are_as_long_as_their_longest_piece_at_most() -> None:
    (rows,) = lay_out(
        made_groups(6, prompt=(4, 4), output=(3, 3)), layout=Layout.PACKED, row_tokens=4096, rows_at_once=1, width=1
    )
    assert rows.tokens.shape == (24, 6)


@pytest.mark.parametrize(("prompt", "output"), [(33, 1), (1, 33), (17, 17)])
@pytest.mark.parametrize("layout", Layout)
def test_a_sequence_longer_than_a_row_is_refused(layout: Layout, prompt: int, output: int) -> None:
    groups = made_groups(1, prompt=(prompt, prompt), output=(output, output))
    with pytest.raises(InvalidInput, match="and rows of 32"):
        lay_out(groups, layout=layout, row_tokens=32, rows_at_once=1, width=16)


@pytest.mark.parametrize(
    ("kind", "dialogues"), [("llama", False), ("llama", True), ("qwen2", True), ("granite", False)]
)
@pytest.mark.parametrize("layout", Layout)
def test_drawn_tokens_have_the_same_logits_as_alone(tmp_path: Path, kind: str, dialogues: bool, layout: Layout) -> None:
    """Granite divides its logits by a constant after the output layer."""
    config: dict[str, Any] = {"logits_scaling": 2.0} if kind == "granite" else {}
    model: Any = fresh(tiny_folder(tmp_path, kind=kind, **config))
    groups = as_dialogues(made_groups(3)) if dialogues else made_groups(3)
    answers = [(group.prompt_tokens, each) for group in groups for each in group.samples]
    for rows in lay_out(groups, layout=layout, row_tokens=40, rows_at_once=2, width=16):
        with torch.no_grad():
            found = answer_logits(model, rows, dtype=Dtype.FLOAT32)
            expected = [
                model(
                    input_ids=torch.from_numpy(np.concatenate([prompt, interleave(one.output_tokens, one.turns)]))[
                        None
                    ].long()
                ).logits[0, len(prompt) - 1 + one.places]
                for prompt, one in (answers[answer] for answer in rows.answers.tolist())
            ]
        torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-4)
