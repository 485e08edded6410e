"""The length reward, and the choice of held-out prompts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from rollouts.environments import LengthReward, Prompt, Score, is_held_out, load_environment, reward_of

RULE = LengthReward(targets=(1, 3, 5, 7), alpha=0.1)


@pytest.mark.parametrize(
    ("task", "target", "tokens", "total"),
    [(1.0, 3, 3, 1.0), (1.0, 3, 5, 0.8), (1.0, 5, 3, 0.8), (0.0, 1, 1, 0.0), (0.0, 7, 0, -0.7)],
)
def test_every_token_off_the_target_costs_alpha(task: float, target: int, tokens: int, total: float) -> None:
    reward = RULE.apply(Score(task=task), target=target, output_tokens=tokens)
    assert reward.total == pytest.approx(total)
    assert reward.total == reward.task - reward.length_penalty
    assert (reward.length, reward.target) == (tokens, target)


def test_an_environment_may_define_what_counts_as_length() -> None:
    reward = RULE.apply(Score(task=1.0, parts={"length": 3.0}), target=3, output_tokens=9)
    assert (reward.total, reward.length) == (1.0, 3)


@given(task=st.sampled_from([0.0, 1.0]), target=st.sampled_from(RULE.targets), tokens=st.integers(0, 2**20))
def test_no_length_earns_more_than_the_target_length(task: float, target: int, tokens: int) -> None:
    best = RULE.apply(Score(task=task), target=target, output_tokens=target)
    reward = RULE.apply(Score(task=task), target=target, output_tokens=tokens)
    assert reward.length_penalty >= 0
    assert reward.total <= best.total == task


def test_without_a_target_the_reward_is_the_task_reward_alone() -> None:
    reward = reward_of(Score(task=1.0), rule=None, target=None, output_tokens=40)
    assert (reward.total, reward.length_penalty, reward.length, reward.target) == (1.0, 0.0, 40, None)


@pytest.mark.parametrize(("rule", "target"), [(RULE, None), (None, 3), (RULE, 4)])
def test_a_target_that_does_not_match_the_rule_is_refused(rule: LengthReward | None, target: int | None) -> None:
    with pytest.raises(InvalidInput):
        reward_of(Score(task=1.0), rule=rule, target=target, output_tokens=1)


@pytest.mark.parametrize(
    ("targets", "alpha"), [((), 0.1), ((-1,), 0.1), ((1,), -0.1), ((1,), math.nan), ((1,), math.inf)]
)
def test_an_invalid_reward_rule_is_refused(targets: tuple[int, ...], alpha: float) -> None:
    with pytest.raises(InvalidInput):
        LengthReward(targets=targets, alpha=alpha)


def test_a_share_of_a_tenth_holds_out_a_tenth_of_the_prompts() -> None:
    assert 850 < sum(is_held_out(index, 0.1) for index in range(10_000)) < 1150
    assert not any(is_held_out(index, 0.0) for index in range(100))
    assert all(is_held_out(index, 1.0) for index in range(100))


def test_a_larger_held_out_share_contains_a_smaller_one() -> None:
    assert all(is_held_out(index, 0.2) for index in range(1000) if is_held_out(index, 0.1))


def test_prompts_of_equal_text_are_held_out_together() -> None:
    letters = load_environment("letters")
    texts: dict[str, set[bool]] = {}
    for index in range(5000):
        prompt = letters.prompt(index)
        texts.setdefault(prompt.text, set()).add(is_held_out(prompt, 0.5))
    assert len(texts) < 5000  # some texts repeat
    assert all(len(answers) == 1 for answers in texts.values())


def test_an_unencodable_prompt_can_be_held_out() -> None:
    assert is_held_out(Prompt(index=0, text="\ud800"), 1.0)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_an_invalid_held_out_share_is_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match="share"):
        is_held_out(1, share)
