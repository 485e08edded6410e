"""Sequences in one row do not attend to each other: a packed sequence has the same states as alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from trainer.learning.packing import NOTHING, pack
from trainer.models.trainable import open_model

SEQUENCES = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=20), min_size=1, max_size=30)


@given(SEQUENCES, st.integers(20, 50))
def test_every_sequence_is_packed_once_and_whole(sequences: list[list[int]], row_tokens: int) -> None:
    packed = pack(sequences, row_tokens=row_tokens)
    assert packed.tokens.shape[1] <= row_tokens
    for number, (sequence, place) in enumerate(zip(sequences, packed.places, strict=True)):
        span = slice(place.start, place.start + place.length)
        assert packed.tokens[place.row, span].tolist() == sequence
        assert packed.positions[place.row, span].tolist() == list(range(len(sequence)))
        assert set(packed.sequences[place.row, span]) == {number}
    assert (packed.sequences != NOTHING).sum() == sum(map(len, sequences))


@given(SEQUENCES)
def test_a_token_attends_only_to_earlier_tokens_of_its_own_sequence(sequences: list[list[int]]) -> None:
    packed = pack(sequences, row_tokens=32)
    seen = packed.mask.sum(axis=2)
    there = packed.sequences != NOTHING
    assert (seen[there] == packed.positions[there] + 1).all()
    assert (seen[~there] >= 1).all(), "a mask row without any position makes softmax NaN"


@given(SEQUENCES)
def test_packing_uses_at_most_about_twice_the_minimum_of_rows(sequences: list[list[int]]) -> None:
    packed = pack(sequences, row_tokens=32)
    assert len(packed.tokens) <= 2 * (sum(map(len, sequences)) / 32) + 1


@pytest.mark.parametrize("sequences", [[], [[1], []], [[1] * 33]])
def test_a_sequence_longer_than_a_row_is_refused(sequences: list[list[int]]) -> None:
    with pytest.raises(InvalidInput, match="rows of 32"):
        pack(sequences, row_tokens=32)


def test_a_packed_sequence_has_the_same_logits_as_alone(llama: Path) -> None:
    model, _ = open_model(llama, device=torch.device("cpu"))
    rng = np.random.default_rng(5)
    sequences = [rng.integers(4, 60, size=length).tolist() for length in (3, 17, 9, 1, 12, 20)]
    packed = pack(sequences, row_tokens=32)
    with torch.no_grad():
        together = model(
            input_ids=torch.from_numpy(packed.tokens),
            position_ids=torch.from_numpy(packed.positions),
            attention_mask=torch.from_numpy(packed.mask[:, None]),
        ).logits
        for sequence, place in zip(sequences, packed.places, strict=True):
            alone = model(input_ids=torch.tensor([sequence])).logits[0]
            found = together[place.row, place.start : place.start + place.length]
            torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)
