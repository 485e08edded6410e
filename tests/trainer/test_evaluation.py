"""An evaluation uses held-out prompts, and counts correctly."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.opening import open_engine
from rollouts.environments import is_held_out, load_environment
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.recipe import EnvironmentChoice, LengthTargets, PromptRange, Recipe, SamplingChoice
from tests.kit.dialogues import REPLIES, dialogue_recipe, talking_folder
from trainer.evaluator import Evaluation, Evaluator, held_out_prompts, pass_at
from trainer.presets import devnet_base

LETTERS = load_environment("letters")


def recipe_of(*, held_out: float = 0.0, length: LengthTargets | None = None) -> Recipe:
    return Recipe(
        environment=EnvironmentChoice(name="letters", version="1"),
        sampling=SamplingChoice(max_new_tokens=6),
        group_size=4,
        length=length,
        held_out=held_out,
        prompts=PromptRange(count=100),
    )


def test_held_out_prompts_are_taken_in_order_with_each_text_once() -> None:
    recipe = recipe_of(held_out=0.1)
    found = held_out_prompts(LETTERS, recipe, count=300)
    texts = [LETTERS.prompt(index).text for index in found]
    assert len(set(texts)) == 300
    assert all(is_held_out(LETTERS.prompt(index), 0.1) for index in found)
    assert found == sorted(found)
    assert held_out_prompts(LETTERS, recipe, count=20) == found[:20]
    assert set(held_out_prompts(LETTERS, recipe, count=20, share=0.05)) <= set(found)


def test_without_a_held_out_share_there_is_nothing_to_evaluate() -> None:
    with pytest.raises(InvalidInput, match="no prompts that are held out at a share of 0"):
        held_out_prompts(LETTERS, recipe_of(), count=10)


def test_prompts_eligible_for_training_are_refused_for_evaluation() -> None:
    with pytest.raises(InvalidInput, match=r"a held-out share of 0\.2 .* holds out only a share of 0\.1"):
        held_out_prompts(LETTERS, recipe_of(held_out=0.1), count=10, share=0.2)


@given(st.data(), st.integers(1, 8))
def test_pass_at_k_is_the_share_of_k_subsets_with_a_right_answer(data: st.DataObject, samples: int) -> None:
    solved, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    chosen = list(combinations([True] * solved + [False] * (samples - solved), k))
    expected = sum(any(each) for each in chosen) / len(chosen)
    assert pass_at(k, samples=samples, solved=solved) == pytest.approx(expected)


def evaluate(
    folder: Path,
    *,
    max_batch: int,
    samples: int = 3,
    length: LengthTargets | None = None,
    options: Mapping[str, JsonValue] | None = None,
) -> Evaluation:
    recipe = recipe_of(held_out=0.1, length=length)
    engine = open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32, device="cpu", max_batch=max_batch)
    engine.load(folder, version=ZERO_DIGEST)
    evaluator = Evaluator(
        environment=load_environment("letters", options=options),
        recipe=recipe,
        tokenizer=FolderTokenizer(folder),
        indices=held_out_prompts(LETTERS, recipe, count=6),
        samples=samples,
    )
    return evaluator.evaluate(engine)


def test_an_evaluation_does_not_depend_on_batching(llama: Path) -> None:
    assert evaluate(llama, max_batch=64) == evaluate(llama, max_batch=5)


def test_dialogues_are_evaluated_by_their_rewards_and_shown_turn_by_turn(tmp_path: Path) -> None:
    folder = talking_folder(tmp_path / "model")
    recipe = dialogue_recipe().model_copy(update={"held_out": 0.1})

    def evaluated(max_batch: int) -> Evaluation:
        engine = open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32, device="cpu", max_batch=max_batch)
        engine.load(folder, version=ZERO_DIGEST)
        indices = held_out_prompts(REPLIES, recipe, count=6)
        tokenizer = FolderTokenizer(folder)
        evaluator = Evaluator(environment=REPLIES, recipe=recipe, tokenizer=tokenizer, indices=indices, samples=3)
        return evaluator.evaluate(engine)

    found = evaluated(64)
    assert found == evaluated(5)
    assert found.reward is not None
    assert 0 < found.reward < 1
    for one in found.examples:
        said, heard = one.answer.count("\n> ") + 1, one.answer.count("\n< (")
        assert one.answer.startswith("> ")
        assert said == heard + 1
        assert one.correct == (said % 2 == 1)
    assert any("\n< (1:" in one.answer for one in found.examples)


def test_examples_are_greedy_answers_as_text(llama: Path) -> None:
    found = evaluate(llama, max_batch=64)
    prompts = held_out_prompts(LETTERS, recipe_of(held_out=0.1), count=6)
    assert [one.prompt for one in found.examples] == [LETTERS.prompt(index).text for index in prompts]
    assert sum(one.correct for one in found.examples) / 6 == found.greedy
    assert sum(one.finished for one in found.examples) / 6 == found.greedy_finished
    assert found.examples == evaluate(llama, max_batch=5, samples=0).examples


def test_pass_at_k_is_given_for_powers_of_two(llama: Path) -> None:
    assert list(evaluate(llama, max_batch=64, samples=5).pass_at) == [1, 2, 4]
    greedy_only = evaluate(llama, max_batch=64, samples=0)
    assert (greedy_only.pass_at, greedy_only.reward) == ({}, None)


@pytest.mark.parametrize("samples", [0, 3])
def test_answer_lengths_are_compared_with_target_lengths(llama: Path, samples: int) -> None:
    """A model of random weights continues to its limit of six tokens or ends before; it cannot reach nine."""
    found = evaluate(llama, max_batch=64, samples=samples, length=LengthTargets(targets=(9,), alpha=0.1))
    assert list(found.lengths) == [9]
    assert found.lengths[9] <= 6
    assert found.distance is not None
    assert found.distance == pytest.approx(9 - found.lengths[9])
    if samples:
        assert found.reward == pytest.approx(found.pass_at[1] - 0.1 * found.distance)


def test_partial_credit_counts_in_rewards_and_not_as_solved() -> None:
    """Of the same answers, exactly the full scores count as solved."""
    base = devnet_base()
    exact, partial = evaluate(base, max_batch=64), evaluate(base, max_batch=64, options={"partial": True})
    assert (partial.greedy, partial.pass_at) == (exact.greedy, exact.pass_at)
    assert exact.greedy_reward == exact.greedy
    assert exact.reward is not None
    assert partial.reward is not None
    assert partial.reward > exact.reward
    assert partial.environments == {}


def test_without_target_lengths_there_is_no_distance(llama: Path) -> None:
    found = evaluate(llama, max_batch=64)
    assert (found.distance, found.lengths) == (None, {})
