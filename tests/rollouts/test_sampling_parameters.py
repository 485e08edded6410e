"""Sampling parameters that a lease may fix."""

from __future__ import annotations

import math

import pytest

from protocol.errors import InvalidInput
from rollouts.engines.draws import rows_by_parameters
from rollouts.sampling.parameters import SamplingParameters


def test_default_sampling_parameters_exclude_no_token() -> None:
    assert not SamplingParameters(max_new_tokens=8).masks
    assert SamplingParameters(max_new_tokens=8, top_p=0.9).masks
    assert SamplingParameters(max_new_tokens=8, top_k=1).masks


def test_rows_that_differ_in_their_limit_of_tokens_are_drawn_together() -> None:
    some = [SamplingParameters(max_new_tokens=8 + number, temperature=(1.0, 0.5)[number % 2]) for number in range(4)]
    assert rows_by_parameters(some) == {some[0]: [0, 2], some[1]: [1, 3]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", 101.0),
        ("top_p", 0.0),
        ("top_p", 1.0001),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", 1.0),
        ("top_k", True),
        ("max_new_tokens", 0),
        ("max_new_tokens", (1 << 20) + 1),
    ],
)
def test_a_parameter_that_cannot_be_replayed_is_refused_by_name(name: str, value: object) -> None:
    values: dict[str, object] = {"max_new_tokens": 8, name: value}
    with pytest.raises(InvalidInput, match=name):
        SamplingParameters(**values)  # type: ignore[arg-type]  # wrong on purpose


def test_sampling_penalties_are_not_supported() -> None:
    with pytest.raises(TypeError):
        SamplingParameters(max_new_tokens=8, repetition_penalty=1.1)  # type: ignore[call-arg]  # wrong on purpose
