"""Honest draws are as probable as their entropy predicts; other tokens are off by many standard deviations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollouts.sampling.likelihood import deviations_of, surprise
from rollouts.sampling.softmax import Softmax, weigh

ROWS, VOCABULARY = 4000, 32


@pytest.fixture(scope="module")
def logits() -> torch.Tensor:
    return 2 * torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(1))


def softmax_of(logits: torch.Tensor) -> Softmax:
    softmax = Softmax.room(len(logits), device=logits.device)
    weigh(logits, softmax, torch.empty(2, *logits.shape))
    return softmax


def off(logits: torch.Tensor, tokens: torch.Tensor) -> float:
    """Returns the deviation in standard deviations, under the model with these logits."""
    own = logits.gather(1, tokens[:, None])[:, 0]
    excess, variance = surprise(softmax_of(logits), own)
    found = deviations_of([(excess.numpy(), variance.numpy())])
    assert found is not None
    return found


def draws(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    drawn = torch.multinomial((logits / temperature).softmax(1), 1, generator=torch.Generator().manual_seed(2))
    return drawn[:, 0]


def test_honest_draws_have_the_expected_likelihood(logits: torch.Tensor) -> None:
    assert abs(off(logits, draws(logits))) < 3


def test_greedy_cooler_and_replaced_tokens_have_an_unexpected_likelihood(logits: torch.Tensor) -> None:
    assert off(logits, logits.argmax(1)) > 20
    assert off(logits, draws(logits, 0.8)) > 6
    assert off(logits, draws(logits.flip(0))) < -20


def test_mean_and_variance_match_those_of_the_distribution() -> None:
    probabilities = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    logs = probabilities.log()
    excess, variance = surprise(softmax_of(logs), logs[:, 0])
    mean = 0.5 * np.log(0.5) + 0.5 * np.log(0.25)
    assert float(excess) == pytest.approx(np.log(0.5) - mean)
    assert float(variance) == pytest.approx(0.5 * np.log(0.5) ** 2 + 0.5 * np.log(0.25) ** 2 - mean**2)


def test_certain_tokens_carry_no_information() -> None:
    zeros = np.zeros(9, np.float32)
    assert deviations_of([(zeros, zeros)]) is None
