"""A step depends only on weights, groups and its number: not on how the batch was cut or on earlier failures."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.errors import Conflict, InvalidInput
from rollouts.turns import interleave
from tests.kit.tiny_model import tiny_folder
from tests.kit.training_groups import as_dialogues, fresh, made_groups, with_own_logprobs
from trainer.errors import TrainingDiverged
from trainer.learning.batch import answers_of
from trainer.learning.groups import TrainingGroup
from trainer.learning.learner import Learner
from trainer.learning.optimisers import make_optimisers
from trainer.learning.settings import LearningOptimiser, LearningSettings, OptimiserKind

BASE: dict[str, Any] = {"row_tokens": 64, "optimiser": {"learning_rate": 1e-3, "clip": 1.0}}


def learner_of(folder: Path, **settings: Any) -> Learner:
    optimiser = BASE["optimiser"] | settings.pop("optimiser", {})
    return Learner(fresh(folder), LearningSettings.model_validate(BASE | settings | {"optimiser": optimiser}))


def assert_same_weights(one: Learner, other: Learner, *, atol: float = 0.0) -> None:
    for name, weight in one.weights().items():
        torch.testing.assert_close(weight, other.weights()[name], rtol=0, atol=atol)


def poisoned(group: TrainingGroup) -> TrainingGroup:
    first = group.samples[0]
    logprobs = np.full_like(first.logprobs, np.nan)
    return replace(group, samples=(replace(first, logprobs=logprobs), *group.samples[1:]))


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "padded"},
        {"layout": "packed"},
        {"layout": "packed", "row_tokens": 24},
        {"layout": "shared", "row_tokens": 24},
        {"rows_at_once": 1},
        {"checkpoint_activations": True},
    ],
)
@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "dr-grpo", {"name": "dapo", "aggregation": "group-tokens"}])
def test_layout_micro_batches_and_activation_checkpoints_do_not_change_the_step(
    llama: Path, settings: dict[str, Any], algorithm: object
) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups(), off=0.3)
    usual = learner_of(llama, algorithm=algorithm)
    other = learner_of(llama, algorithm=algorithm, **settings)
    expected, found = usual.learn(groups, step=9), other.learn(groups, step=9)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
    assert found.entropy == pytest.approx(expected.entropy, rel=1e-5)
    assert (found.tokens, found.answers, found.groups) == (expected.tokens, expected.answers, expected.groups)


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_a_step_on_dialogues_moves_only_the_probabilities_of_drawn_tokens(llama: Path, layout: str) -> None:
    """With ratios of 1, the gradient is that of the weighted log-probabilities in a plain forward pass of each one."""
    model: Any = fresh(llama)
    groups = with_own_logprobs(model, as_dialogues(made_groups()))
    learner = learner_of(llama, layout=layout)
    answers = answers_of(groups, LearningSettings.model_validate(BASE).algorithm)
    weights = iter(torch.split(answers.weight_n * answers.advantage_n, answers.length_s.tolist()))
    loss = torch.zeros(())
    for group in groups:
        for one in group.samples:
            whole = torch.from_numpy(np.concatenate([group.prompt_tokens, interleave(one.output_tokens, one.turns)]))
            logits = model(input_ids=whole[None].long()).logits[0, len(group.prompt_tokens) - 1 + one.places]
            drawn = torch.log_softmax(logits, dim=-1).gather(1, torch.from_numpy(one.output_tokens)[:, None].long())
            loss = loss - (drawn[:, 0] * next(weights)).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    squares = [weight.grad.square().sum().item() for weight in model.parameters() if weight.grad is not None]
    found = learner.learn(groups, step=9)
    assert found.tokens == sum(len(one.output_tokens) for group in groups for one in group.samples)
    assert found.ratio_max == pytest.approx(1, abs=1e-4)
    assert found.gradient_norm == pytest.approx(math.sqrt(sum(squares)) / found.tokens, rel=1e-4)


def test_activation_checkpoints_are_made_and_dropout_stays_disabled(llama: Path) -> None:
    model = fresh(llama)
    Learner(model, LearningSettings(checkpoint_activations=True))
    training = [name for name, module in model.named_modules() if module.training]
    assert training == ["model.layers.0", "model.layers.1"]


@pytest.mark.parametrize("algorithm", ["grpo", "dr-grpo", "gspo", {"name": "grpo", "aggregation": "group-tokens"}])
def test_groups_added_one_by_one_give_the_same_step_as_a_batch(llama: Path, algorithm: object) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups(5), off=0.2)
    whole, parts = learner_of(llama, algorithm=algorithm), learner_of(llama, algorithm=algorithm)
    expected = whole.learn(groups, step=9)
    parts.begin(step=9)
    for group in groups:
        parts.add([group])
    found = parts.finish()
    assert found.loss == pytest.approx(expected.loss, abs=1e-6)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
    assert (found.tokens, found.length_max) == (expected.tokens, expected.length_max)
    assert found.reward_mean == pytest.approx(expected.reward_mean)


def test_a_token_has_the_same_weight_in_full_and_short_micro_batches(llama: Path) -> None:
    """Dividing each micro-batch by its own number of tokens would give tokens of short ones more weight."""
    long, short = made_groups(1, output=(7, 7)), made_groups(1, output=(1, 1), seed=3)
    groups = with_own_logprobs(fresh(llama), [*long, *short])
    together, alone = learner_of(llama), [learner_of(llama) for _ in range(2)]
    loss = together.learn(groups, step=9).loss
    losses = [each.learn([group], step=9) for each, group in zip(alone, groups, strict=True)]
    expected = sum(done.loss * done.tokens for done in losses) / sum(done.tokens for done in losses)
    assert loss == pytest.approx(expected, abs=1e-6)


def test_a_restored_run_has_bitwise_equal_weights(llama: Path) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups(), off=0.3)
    whole, stopped, resumed = (learner_of(llama) for _ in range(3))
    for step in range(4):
        whole.learn(groups, step=step)
    for step in range(2):
        stopped.learn(groups, step=step)
    resumed.restore(stopped.state())
    stopped.learn(groups, step=2)  # later steps are not part of the restored state
    for step in range(2, 4):
        resumed.learn(groups, step=step)
    assert_same_weights(whole, resumed)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_optimiser_lowers_the_loss_of_its_batch_and_can_be_restored(llama: Path, kind: str) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups())
    learner = learner_of(llama, algorithm="aipo", optimiser={"kind": kind, "warm_up_steps": 0})
    probabilities = [learner.learn(groups, step=step).ratio_max for step in range(3)]
    assert probabilities[0] == pytest.approx(1, abs=1e-4)
    assert probabilities[-1] > 1.001
    again = learner_of(llama, algorithm="aipo", optimiser={"kind": kind, "warm_up_steps": 0})
    again.restore(learner.state())
    learner.learn(groups, step=3)
    again.learn(groups, step=3)
    assert_same_weights(learner, again)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_muon_updates_inner_matrices_and_adamw_everything_else(tmp_path: Path, kind: str) -> None:
    """Qwen2's output layer is its embedding, and its projections also have bias vectors."""
    model = fresh(tiny_folder(tmp_path, kind=kind))
    muon, adamw = make_optimisers(model, LearningOptimiser(kind=OptimiserKind.MUON))
    names = {weight: name for name, weight in model.named_parameters()}
    moved = [[names[weight] for group in each.param_groups for weight in group["params"]] for each in (muon, adamw)]
    assert sorted(moved[0] + moved[1]) == sorted(names.values())
    assert moved[0] == [name for name in names.values() if name.endswith("_proj.weight")]


def test_a_state_of_another_model_is_refused(llama: Path, tmp_path: Path) -> None:
    state = learner_of(llama).state()
    short = {name: tensor[:1] for name, tensor in state.tensors.items()}
    with pytest.raises(Conflict, match="does not fit a weight of"):
        learner_of(llama).restore(replace(state, tensors=short))
    with pytest.raises(Conflict, match="not of this model"):
        learner_of(llama).restore(replace(state, tensors={}))


def test_a_step_with_nan_is_skipped_without_a_trace(llama: Path) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups())
    touched, untouched = learner_of(llama), learner_of(llama)
    bad = touched.learn([poisoned(groups[0]), *groups[1:]], step=0)
    assert bad.bad
    assert touched.skipped == 1
    assert_same_weights(touched, untouched)
    assert not touched.learn(groups, step=1).bad
    untouched.learn(groups, step=1)
    assert_same_weights(touched, untouched)


def test_an_exploding_gradient_is_skipped(llama: Path) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups(), off=0.3)
    learner, untouched = learner_of(llama, optimiser={"largest_gradient": 1e-3}), learner_of(llama)
    done = learner.learn(groups, step=0)
    assert done.bad
    assert done.gradient_norm > 1e-3
    assert_same_weights(learner, untouched)


def test_too_many_skipped_steps_end_the_run_and_the_count_survives_a_restart(llama: Path) -> None:
    groups = [poisoned(group) for group in made_groups(1)]
    learner = learner_of(llama, optimiser={"most_bad_steps": 2})
    for step in range(2):
        assert learner.learn(groups, step=step).bad
    resumed = learner_of(llama, optimiser={"most_bad_steps": 2})
    resumed.restore(learner.state())
    with pytest.raises(TrainingDiverged, match="3 steps in a row"):
        resumed.learn(groups, step=2)


def test_the_ratio_uses_the_samplers_log_probabilities_unless_recomputed(llama: Path) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups(), off=0.5)
    recorded = learner_of(llama).learn(groups, step=9)
    recomputed = learner_of(llama, old_policy="recomputed").learn(groups, step=9)
    assert recorded.ratio_max > 1.3
    assert recomputed.ratio_max == 1.0
    assert recorded.sampler_gap == pytest.approx(recomputed.sampler_gap)
    assert recorded.sampler_gap == pytest.approx(0.5 * np.sqrt(2 / np.pi), rel=0.3)


def test_log_probabilities_use_the_sampling_temperature(llama: Path) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups(), temperature=0.7)
    settings = LearningSettings.model_validate(BASE)
    assert Learner(fresh(llama), settings, temperature=0.7).learn(groups, step=9).sampler_gap < 1e-5
    assert Learner(fresh(llama), settings, temperature=1.0).learn(groups, step=9).sampler_gap > 0.1


def test_a_reference_model_keeps_the_policy_near_it(llama: Path) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups())
    settings = LearningSettings.model_validate(BASE | {"algorithm": {"name": "grpo", "kl": 1.0}})
    with pytest.raises(InvalidInput, match="reference"):
        Learner(fresh(llama), settings)
    free, held = learner_of(llama), Learner(fresh(llama), settings, reference=fresh(llama))
    watched = Learner(fresh(llama), LearningSettings.model_validate(BASE), reference=fresh(llama))
    for step in range(6):
        free.learn(groups, step=step)
        far = watched.learn(groups, step=step).kl
        near = held.learn(groups, step=step).kl
    assert far is not None
    assert near is not None
    assert 0 < near < 0.8 * far
    assert_same_weights(free, watched)


def test_computation_is_in_bfloat16_and_updates_in_float32(llama: Path) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups(), off=0.3)
    full, half = learner_of(llama), learner_of(llama, dtype="bfloat16")
    expected, found = full.learn(groups, step=9), half.learn(groups, step=9)
    assert found.loss != expected.loss
    assert found.loss == pytest.approx(expected.loss, abs=0.02)
    assert all(weight.dtype == torch.float32 for weight in half.weights().values())
    assert all(tensor.dtype == torch.float32 for name, tensor in half.state().tensors.items() if name != "rng")


def test_an_algorithm_over_whole_batches_refuses_partial_batches(llama: Path) -> None:
    groups = made_groups()
    learner = learner_of(llama, algorithm="reinforce++")
    learner.begin(step=0)
    learner.add(groups[:1])
    with pytest.raises(InvalidInput, match="was added in parts"):
        learner.add(groups[1:])


@pytest.mark.parametrize("groups", [[], made_groups(1, prompt=(64, 64))])
def test_a_sequence_longer_than_a_row_is_refused_before_any_learning(llama: Path, groups: list[TrainingGroup]) -> None:
    learner, untouched = learner_of(llama), learner_of(llama)
    learner.begin(step=0)
    with pytest.raises(InvalidInput, match="and rows of 64"):
        learner.add(groups)
    learner.add(made_groups(1))
    learner.finish()
    untouched.learn(made_groups(1), step=0)
    assert_same_weights(learner, untouched)


def test_a_step_without_groups_is_refused(llama: Path) -> None:
    learner = learner_of(llama)
    learner.begin(step=0)
    with pytest.raises(InvalidInput, match="the step has no group"):
        learner.finish()


def test_the_report_describes_the_batch(llama: Path) -> None:
    groups = with_own_logprobs(fresh(llama), made_groups())
    done = learner_of(llama, optimiser={"warm_up_steps": 10}).learn(groups, step=4)
    samples = list(itertools.chain.from_iterable(group.samples for group in groups))
    rewards, lengths = [sample.reward for sample in samples], [len(sample.output_tokens) for sample in samples]
    assert (done.groups, done.answers, done.tokens) == (3, 12, sum(lengths))
    assert (done.reward_mean, done.reward_std) == pytest.approx((np.mean(rewards), np.std(rewards)))
    assert done.length_mean == pytest.approx(np.mean(lengths))
    assert done.length_max == max(lengths)
    assert done.learning_rate == pytest.approx(0.5e-3)
    assert 0 < done.entropy < np.log(64)
    assert done.clip_fraction == 0.0
    assert done.tokens_per_second > 0
