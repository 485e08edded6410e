"""Promises of every environment, checked on every family that needs no data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from rollouts.environments import Environment, load_environment
from rollouts.environments.errors import NoSuchPrompt

CHOICES: list[tuple[str, dict[str, JsonValue]]] = [
    ("letters", {}),
    ("letters", {"filler": True}),
    ("arithmetic", {}),
    ("arithmetic", {"operations": ["*"], "digits": 18}),
]
choices = pytest.mark.parametrize(("name", "options"), CHOICES, ids=str)
environments = pytest.mark.parametrize(
    "environment", [load_environment(name, options=options) for name, options in CHOICES], ids=lambda each: each.version
)


@choices
def test_a_prompt_is_the_same_at_every_request(name: str, options: dict[str, JsonValue]) -> None:
    one, other = load_environment(name, options=options), load_environment(name, options=options)
    assert [one.prompt(index) for index in range(50)] == [other.prompt(index) for index in reversed(range(50))][::-1]


@environments
@given(completion=st.text(), finished=st.booleans(), index=st.integers(0, 2**63 - 1))
def test_any_text_gets_a_binary_score(environment: Environment, completion: str, finished: bool, index: int) -> None:
    score = environment.score(environment.prompt(index), completion, finished=finished)
    assert score.task in {0.0, 1.0}
    assert all(isinstance(part, float) for part in score.parts.values())


@environments
def test_a_right_answer_counts_only_if_the_model_ended_it(environment: Environment) -> None:
    prompt = environment.prompt(7)
    answer = str(prompt.data["answer"])
    assert environment.score(prompt, answer, finished=True).task == 1.0
    assert environment.score(prompt, answer, finished=False).task == 0.0
    assert environment.score(prompt, answer + "x", finished=True).task == 0.0


@environments
@pytest.mark.parametrize("index", [-1, 2**63])
def test_an_index_out_of_range_is_refused_with_the_range(environment: Environment, index: int) -> None:
    with pytest.raises(NoSuchPrompt, match="indices go from 0"):
        environment.prompt(index)
