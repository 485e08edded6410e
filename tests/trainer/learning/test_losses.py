"""Every part of a loss matches its paper on numbers small enough to check, and its gradient is its derivative."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.learning.algorithms import NAMED, Algorithm, ClippedTerm
from trainer.learning.batch import Answers
from trainer.learning.losses import (
    COUNTED,
    Advantage,
    Aggregation,
    Count,
    Distance,
    Importance,
    advantages,
    clipped_term,
    distances,
    logprobs_and_entropies,
    masked_term,
    ratios,
    token_weights,
    truncated_term,
)
from trainer.learning.objective import objective_of

LENGTH = torch.tensor([3, 1, 2, 2])
GROUP = torch.tensor([0, 0, 1, 1])
ANSWER = torch.repeat_interleave(LENGTH)
REWARD = torch.tensor([1.0, 0.0, 0.5, 0.25], dtype=torch.float64)
OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.5, -0.1, -2.5, -0.7], dtype=torch.float64)
OFF = torch.tensor([0.05, -0.5, 0.4, 2.0, -0.1, 1.5, -3.0, 0.1], dtype=torch.float64)
"""Distances of the policy's log-probabilities from the old ones: ratios of 0.05 to 7.4."""
COUNTS = {Count.TOKENS: 8, Count.ANSWERS: 4, Count.GROUPS: 2}
RATIOS = st.floats(0.0078125, 50, width=32)
WORTH = st.floats(-3, 3, width=32, allow_subnormal=False)


def loss_of(algorithm: Algorithm, logprob_n: torch.Tensor, old_n: torch.Tensor = OLD, **more: Any) -> torch.Tensor:
    """Returns the loss of the four answers above."""
    advantage_s = advantages(algorithm.advantage, reward_s=REWARD, group_s=GROUP)
    weight_s = token_weights(
        algorithm.aggregation, length_s=LENGTH, group_length_s=torch.tensor([4] * 4), fixed=algorithm.fixed_length
    )
    answers = Answers(
        token_n=torch.zeros(8, dtype=torch.int64),
        sampler_n=old_n,
        answer_n=ANSWER,
        weight_n=weight_s.double()[ANSWER],
        advantage_n=advantage_s[ANSWER],
        length_s=LENGTH,
    )
    given = {"entropy_n": torch.zeros(8), "reference_n": None} | more
    found = objective_of(algorithm, answers, logprob_n=logprob_n, **given)
    return -found.total / COUNTS[COUNTED[algorithm.aggregation]]


def by_answer(values: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.split(values, LENGTH.tolist()))


def grpo(ratio: torch.Tensor, worth: float, low: float = 0.2, high: float = 0.2, cap: float = math.inf) -> torch.Tensor:
    return torch.minimum(ratio.clamp(max=cap) * worth, ratio.clamp(1 - low, 1 + high) * worth)


def normalised(rewards: torch.Tensor) -> torch.Tensor:
    return (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-6)


PI = OLD + OFF
RHO = by_answer((PI - OLD).exp())
BY_GROUP = [*normalised(REWARD[:2]).tolist(), *normalised(REWARD[2:]).tolist()]
LESS_MEAN = [0.5, -0.5, 0.125, -0.125]
LOG_PI = by_answer(PI)
GEOMETRIC = [ratio.log().mean().exp() for ratio in RHO]

PAPERS: dict[str, Any] = {
    # INTELLECT-2 section 3: both bounds, equal weight for all tokens of the batch
    "grpo": -sum(grpo(r, a, cap=4.0).sum() for r, a in zip(RHO, BY_GROUP, strict=True)) / 8,
    # DAPO section 3.1 and 3.3
    "dapo": -sum(grpo(r, a, 0.2, 0.28).sum() for r, a in zip(RHO, BY_GROUP, strict=True)) / 8,
    # Dr. GRPO section 3.2: neither |o| nor std; its code divides by the most tokens of an answer
    "dr-grpo": -sum(grpo(r, a).sum() / 1024 for r, a in zip(RHO, LESS_MEAN, strict=True)) / 4,
    # RLOO, Ahmadian et al.: the reward minus the mean of the others', times log pi of the whole answer
    "rloo": -sum(a * 2 * log.sum() for log, a in zip(LOG_PI, LESS_MEAN, strict=True)) / 4,
    # REINFORCE++: batch-normalised advantages, PPO's surrogate, the mean per answer
    "reinforce++": -sum(grpo(r, a).mean() for r, a in zip(RHO, normalised(REWARD).tolist(), strict=True)) / 4,
    "reinforce++-baseline": -sum(
        grpo(r, a).mean() for r, a in zip(RHO, normalised(torch.tensor(LESS_MEAN).double()).tolist(), strict=True)
    )
    / 4,
    # LlamaRL: min(pi/mu, 8) as a weight of the policy gradient
    "aipo": -sum((r.clamp(max=8) * a * log).sum() for r, log, a in zip(RHO, LOG_PI, LESS_MEAN, strict=True)) / 8,
    # MiniMax-M1 equation 4
    "cispo": -sum((r.clamp(0, 5) * a * log).sum() for r, log, a in zip(RHO, LOG_PI, BY_GROUP, strict=True)) / 8,
    # GSPO equations 5 and 7: one ratio, one clip, for each answer
    "gspo": -sum(grpo(s, a, 3e-4, 4e-4) for s, a in zip(GEOMETRIC, BY_GROUP, strict=True)) / 4,
    # INTELLECT-3 section 3
    "icepop": -sum((r * a)[(r >= 0.5) & (r <= 5)].sum() for r, a in zip(RHO, LESS_MEAN, strict=True)) / 8,
}


@pytest.mark.parametrize("name", PAPERS)
def test_each_named_algorithm_matches_the_formula_of_its_paper(name: str) -> None:
    torch.testing.assert_close(loss_of(Algorithm(name=name), PI), PAPERS[name])


def test_every_named_algorithm_has_a_formula_test() -> None:
    assert NAMED.keys() - PAPERS.keys() == {"intellect-2"}
    preset = Algorithm(name="intellect-2")
    assert (preset.entropy, preset.kl, preset.term) == (1e-4, 1e-3, ClippedTerm(low=0.2, high=0.2, cap=4.0))


def test_kl_and_entropy_terms_have_the_configured_weights() -> None:
    """INTELLECT-2: its clipped loss, plus 0.001 of GRPO's KL term, minus 0.0001 of the entropy."""
    reference_n, entropy_n = OLD - 0.3, torch.arange(8).double()
    ratio_n = (reference_n - PI).exp()
    expected = PAPERS["grpo"] + 1e-3 * (ratio_n - 1 - ratio_n.log()).mean() - 1e-4 * entropy_n.mean()
    found = loss_of(Algorithm(name="intellect-2"), PI, reference_n=reference_n, entropy_n=entropy_n)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr-grpo", "reinforce++", "gspo", "icepop"])
def test_the_gradient_of_a_surrogate_equals_its_derivative(name: str) -> None:
    at = PI.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda logprob_n: loss_of(Algorithm(name=name), logprob_n), at)


@pytest.mark.parametrize("name", ["aipo", "cispo", "rloo"])
def test_importance_weights_of_a_policy_gradient_are_constants(name: str) -> None:
    """The derivative is that of the loss with constant weights."""
    algorithm = Algorithm(name=name)
    at = PI.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(algorithm, at), at)
    advantage_n = advantages(algorithm.advantage, reward_s=REWARD, group_s=GROUP)[ANSWER]
    weight_n = (PI - OLD).exp() if algorithm.importance == Importance.TOKEN else torch.ones(8)
    bounded_n = weight_n.clamp(max=algorithm.term.high if algorithm.term.kind == "truncated" else math.inf)
    divisor = COUNTS[COUNTED[algorithm.aggregation]]
    torch.testing.assert_close(gradient, -(bounded_n * advantage_n / divisor).double())


@pytest.mark.parametrize("name", ["grpo", "dapo", "aipo", "cispo", "icepop", "dr-grpo"])
def test_all_algorithms_have_the_same_gradient_on_policy(name: str) -> None:
    """At a ratio of 1 nothing is clipped, so all give the policy gradient of the same advantage and aggregation."""
    plain = Algorithm.model_validate({"name": "rloo", "advantage": "group-mean", "aggregation": "tokens"})
    same = Algorithm.model_validate({"name": name, "advantage": "group-mean", "aggregation": "tokens"})
    gradients: list[torch.Tensor] = []
    for algorithm in (plain, same):
        at = OLD.clone().requires_grad_()
        gradients += torch.autograd.grad(loss_of(algorithm, at), at)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_gspo_with_one_token_answers_equals_grpo_with_the_mean_over_answers() -> None:
    ones = torch.arange(8)
    token_n, sequence_n = (
        ratios(kind, logprob_n=PI, old_n=OLD, answer_n=ones, length_s=torch.ones(8, dtype=torch.int64))
        for kind in (Importance.TOKEN, Importance.SEQUENCE)
    )
    torch.testing.assert_close(token_n, sequence_n)


@given(RATIOS, WORTH)
def test_without_a_cap_or_within_it_the_two_sided_clip_equals_ppos(ratio: float, worth: float) -> None:
    ratio_n, advantage_n = torch.tensor([ratio]), torch.tensor([worth])
    two_sided, stopped = clipped_term(ratio_n=ratio_n, advantage_n=advantage_n, low=0.2, high=0.2, cap=4.0)
    ppo, _ = clipped_term(ratio_n=ratio_n, advantage_n=advantage_n, low=0.2, high=0.2, cap=None)
    if worth >= 0 or ratio <= 4:
        assert two_sided.item() == ppo.item()
    else:
        assert two_sided.item() == pytest.approx(4 * worth)
        assert stopped.item()


@given(RATIOS, WORTH)
def test_tokens_reported_as_clipped_are_those_without_a_gradient(ratio: float, worth: float) -> None:
    at = torch.tensor([ratio], requires_grad=True)
    advantage_n = torch.tensor([worth])
    terms = [
        clipped_term(ratio_n=at, advantage_n=advantage_n, low=0.2, high=0.28, cap=4.0),
        clipped_term(ratio_n=at, advantage_n=advantage_n, low=0.2, high=0.2, cap=None),
        masked_term(ratio_n=at, advantage_n=advantage_n, low=0.5, high=5.0),
    ]
    on_an_edge = min(abs(ratio - edge) for edge in (0.5, 0.8, 1.2, 1.28, 4, 5)) < 1e-4
    for value, stopped in terms:
        (gradient,) = torch.autograd.grad(value.sum(), at)
        if abs(worth) > 1e-6 and not on_an_edge:
            assert (gradient.item() == 0) == stopped.item()


@given(RATIOS, WORTH)
def test_a_truncated_importance_weight_is_bounded_and_never_zero(ratio: float, worth: float) -> None:
    at = torch.tensor([-1.0], requires_grad=True)
    value, bounded = truncated_term(
        ratio_n=torch.tensor([ratio]), logprob_n=at, advantage_n=torch.tensor([worth]), low=0.0, high=8.0
    )
    (gradient,) = torch.autograd.grad(value.sum(), at)
    assert gradient.item() == pytest.approx(min(ratio, 8.0) * worth, rel=1e-5)
    assert bounded.item() == (torch.tensor(ratio).item() > 8.0)


def test_an_answer_with_one_impossible_token_is_excluded_completely() -> None:
    low = OLD.clone()
    low[4] -= 12.0  # a ratio of 6e-6 in the third answer
    loss = loss_of(Algorithm(name="icepop"), low)
    expected = -(3 * 0.5 - 0.5 - 2 * 0.125) / 8
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Advantage.GROUP, [1, -1, 1, -1]),
        (Advantage.GROUP_MEAN, [0.5, -0.5, 0.125, -0.125]),
        (Advantage.LEAVE_ONE_OUT, [1.0, -1.0, 0.25, -0.25]),
        (Advantage.BATCH, normalised(REWARD).tolist()),
        (Advantage.GROUP_MEAN_BATCH, (torch.tensor(LESS_MEAN) / math.sqrt((0.25 + 0.015625) / 2)).tolist()),
    ],
)
def test_advantages_match_their_papers(kind: Advantage, expected: list[float]) -> None:
    assert advantages(kind, reward_s=REWARD, group_s=GROUP).tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", Advantage)
@pytest.mark.parametrize("reward_s", [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.7, 0.7, 0.7]])
def test_equal_rewards_have_zero_advantage_even_in_a_group_of_one(kind: Advantage, reward_s: list[float]) -> None:
    found = advantages(kind, reward_s=torch.tensor(reward_s, dtype=torch.float64), group_s=torch.tensor([0, 0, 1]))
    assert found.tolist() == pytest.approx([0, 0, 0], abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12), st.data())
def test_advantages_of_a_group_sum_to_zero(rewards: list[float], data: st.DataObject) -> None:
    groups = sorted(data.draw(st.lists(st.integers(0, 2), min_size=len(rewards), max_size=len(rewards))))
    group_s = torch.unique(torch.tensor(groups), return_inverse=True)[1]
    for kind in (Advantage.GROUP, Advantage.GROUP_MEAN, Advantage.LEAVE_ONE_OUT, Advantage.GROUP_MEAN_BATCH):
        found = advantages(kind, reward_s=torch.tensor(rewards, dtype=torch.float64), group_s=group_s)
        sums = torch.zeros(int(group_s.max()) + 1, dtype=torch.float64).index_add(0, group_s, found)
        assert sums.abs().max() < 1e-6 * (1 + found.abs().max())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Aggregation.TOKENS, [1 / 8] * 8),
        (Aggregation.GROUP_TOKENS, [1 / 8] * 8),
        (Aggregation.ANSWERS, [1 / 12] * 3 + [1 / 4] + [1 / 8] * 4),
        (Aggregation.CONSTANT, [1 / 40] * 8),
        (Aggregation.SEQUENCES, [1 / 4] * 8),
    ],
)
def test_a_tokens_weight_follows_the_aggregation(kind: Aggregation, expected: list[float]) -> None:
    weight_s = token_weights(kind, length_s=LENGTH, group_length_s=torch.tensor([4] * 4), fixed=10)
    assert (weight_s[ANSWER] / COUNTS[COUNTED[kind]]).tolist() == pytest.approx(expected)


def test_kl_estimators_have_the_expected_mean_and_gradient() -> None:
    """Over a whole vocabulary instead of samples: k1 and k3 give the KL, and k2 its gradient; the gradient of k1 is
    zero.
    """
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, -0.5, 0.5, 0.4], dtype=torch.float64), 0)
    log_pi = torch.log_softmax(logits, 0)
    kl = (log_pi.exp() * (log_pi - reference)).sum()
    (exact,) = torch.autograd.grad(kl, logits, retain_graph=True)

    def expected(kind: Distance) -> tuple[float, torch.Tensor]:
        each = distances(kind, logprob_n=log_pi, reference_n=reference)
        mean = (log_pi.exp().detach() * each).sum()
        return mean.item(), torch.autograd.grad(mean, logits, retain_graph=True)[0]

    assert expected(Distance.K1)[0] == pytest.approx(kl.item())
    assert expected(Distance.K3)[0] == pytest.approx(kl.item())
    assert expected(Distance.K1)[1].abs().max() < 1e-12
    torch.testing.assert_close(expected(Distance.K2)[1], exact)
    assert expected(Distance.K2)[0] > 0


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=6), st.lists(st.floats(-30, 0), min_size=6, max_size=6))
def test_k2_and_k3_are_never_negative_and_do_not_overflow(own: list[float], other: list[float]) -> None:
    logprob_n, reference_n = torch.tensor(own), torch.tensor(other[: len(own)])
    for kind in (Distance.K2, Distance.K3):
        found = distances(kind, logprob_n=logprob_n, reference_n=reference_n)
        assert found.isfinite().all()
        assert (found >= -1e-6).all()


def test_log_probabilities_and_entropies_use_the_temperature() -> None:
    logits_nv = torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]])
    found, entropy = logprobs_and_entropies(logits_nv, torch.tensor([2, 0]), temperature=0.5)
    assert found.tolist() == pytest.approx([math.log(math.exp(4) / (1 + math.exp(2) + math.exp(4))), -math.log(3)])
    assert entropy[1].item() == pytest.approx(math.log(3))
    probabilities = torch.softmax(logits_nv / 0.5, dim=1)
    torch.testing.assert_close(entropy, -(probabilities * probabilities.log()).sum(dim=1))


def test_impossible_log_probabilities_give_finite_values_and_no_gradient() -> None:
    at = torch.tensor([-1.0, -90.0], requires_grad=True)
    ratio_n = ratios(
        Importance.TOKEN,
        logprob_n=at,
        old_n=torch.tensor([-torch.inf, -1.0]),
        answer_n=torch.tensor([0, 1]),
        length_s=torch.tensor([1, 1]),
    )
    value, _ = clipped_term(ratio_n=ratio_n, advantage_n=torch.tensor([-1.0, 1.0]), low=0.2, high=0.2, cap=4.0)
    (gradient,) = torch.autograd.grad(value.sum(), at)
    assert value.isfinite().all()
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("given_settings", "said"),
    [
        ({"name": "ppo2"}, "there is no algorithm"),
        ({"name": "grpo", "kl": 0.1, "distance": "k1"}, "no gradient in expectation"),
        ({"name": "icepop", "term": {"low": 6.0}}, "ratio 6.0 is above its high ratio 5.0"),
        ({"name": "grpo", "term": {"cap": 0.9}}, "greater than 1"),
        ({"name": "grpo", "clip": 0.1}, "Extra inputs"),
        ({"name": "grpo", "kl": math.nan}, "finite"),
    ],
)
def test_an_invalid_loss_is_refused(given_settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Algorithm.model_validate(given_settings)


def test_overriding_one_field_keeps_the_rest_of_the_named_algorithm() -> None:
    changed = Algorithm.model_validate({"name": "dapo", "kl": 0.01, "term": {"high": 0.3}})
    assert changed.term == ClippedTerm(low=0.2, high=0.3, cap=None)
    assert changed.kl == 0.01
    assert Algorithm.model_validate("gspo") == Algorithm(name="gspo")
    for name in NAMED:
        algorithm = Algorithm(name=name)
        assert Algorithm.model_validate(algorithm.model_dump(mode="json")) == algorithm


def test_only_batch_normalised_advantages_need_whole_batches() -> None:
    needing = [name for name in NAMED if Algorithm(name=name).needs_whole_batch]
    assert needing == ["reinforce++", "reinforce++-baseline"]
