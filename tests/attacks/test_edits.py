"""Attacks that change a finished file, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cli.devnet.attacks.edits import best_first


@pytest.mark.parametrize(
    ("rewards", "order"),
    [
        ((0.0, 1.0, 0.5), (1.0, 0.5, 0.0)),
        ((1.0, 0.5, 0.0), (0.0, 0.5, 1.0)),  # sorted already, so it is reversed: the attack must change the order
    ],
)
def test_rows_are_reordered_by_descending_reward(rewards: tuple[float, ...], order: tuple[float, ...]) -> None:
    samples: Any = [SimpleNamespace(reward=reward) for reward in rewards]
    assert tuple(sample.reward for sample in best_first(samples)) == order
