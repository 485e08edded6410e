"""Played dialogues of tiny real models: provable by one prefill, replayable, and independent of the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.identifiers import ZERO_DIGEST, address, digest
from rollouts.checks.evidence import gather
from rollouts.dialogue.play import Dialogue, PlayedDialogue, play
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Completion, FinishReason, SampleRequest
from rollouts.engines.shared import SharedEngine
from rollouts.engines.torch.cache import CacheFull, RowCache
from rollouts.engines.torch.engine import TorchEngine
from rollouts.environments.errors import EnvironmentFault
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.files.schema import read_rollouts, write_rollouts
from rollouts.models.facts import read_model
from rollouts.models.policy import load_policy
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import Recipe
from rollouts.turns import drawn_places
from tests.kit.dialogues import dialogue_recipe, replying_planner, talking_folder
from tests.kit.tiny_model import CONTEXT, VOCABULARY, tiny_folder

CPU = torch.device("cpu")
SEED = b"\x61" * 32
VERSION = digest(b"\x01" * 32)
RECIPE = dialogue_recipe()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking_folder(tmp_path_factory.mktemp("talking") / "model")


def engine_of(folder: Path, *, max_batch: int = 64, cache_bytes: int | None = None) -> TorchEngine:
    engine = TorchEngine(dtype=Dtype.FLOAT32, device=CPU, max_batch=max_batch, cache_bytes=cache_bytes)
    engine.load(folder, version=VERSION)
    return engine


def dialogues_of(folder: Path, recipe: Recipe = RECIPE, *, groups: int = 3) -> list[Dialogue]:
    planner = replying_planner(recipe, FolderTokenizer(folder))
    plan, facts = planner.plan(SEED, groups=groups), read_model(folder)
    return [planner.dialogue(group, sample, seed=SEED, model=facts) for sample, group in plan.group_of_sample().items()]


@contextmanager
def shared(engine: TorchEngine) -> Iterator[SharedEngine]:
    with ThreadPoolExecutor(1) as thread:
        yield SharedEngine(engine, thread=thread)


def played(engine: Any, dialogues: Sequence[Dialogue], recipe: Recipe = RECIPE, **options: Any) -> list[PlayedDialogue]:
    with ThreadPoolExecutor(1) as replies:
        found = play(engine, dialogues, recipe.sampling.parameters, replies=replies, **options)
        return sorted(found, key=lambda one: one.sample)


def joined(engine: TorchEngine, dialogues: Sequence[Dialogue], recipe: Recipe = RECIPE) -> list[PlayedDialogue]:
    with shared(engine) as many:
        return played(many, dialogues, recipe)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[PlayedDialogue]:
    return played(engine_of(folder), dialogues_of(folder))


def same(found: Sequence[PlayedDialogue], wanted: Sequence[PlayedDialogue]) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert [one.drawn.tokens for one in found] == [one.drawn.tokens for one in wanted]
    assert [one.reward for one in found] == [one.reward for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.drawn.logprobs, theirs.drawn.logprobs, atol=1e-4)
        assert len(ours.drawn.proofs) == len(theirs.drawn.proofs) == 258 * -(-len(ours.drawn.tokens) // 32)


def file_of(dialogues: Sequence[PlayedDialogue], folder: Path) -> RolloutFile:
    """The dialogues as a rollout file, as the task writes it."""
    plan = replying_planner(RECIPE, FolderTokenizer(folder)).plan(SEED, groups=3)
    groups = plan.group_of_sample()
    samples = [
        Sample(
            group=groups[one.sample].group,
            sample=one.sample,
            prompt_index=groups[one.sample].prompt.index,
            prompt_tokens=np.array(groups[one.sample].tokens, np.int32),
            output_tokens=np.array(one.drawn.tokens, np.int32),
            logprobs=one.drawn.logprobs,
            finish=one.drawn.finish,
            task_reward=one.reward.task,
            length_penalty=one.reward.length_penalty,
            reward=one.reward.total,
            target_length=None,
            proofs=one.drawn.proofs,
            turns=one.turns,
        )
        for one in dialogues
    ]
    header = SlotHeader(
        run=ZERO_DIGEST,
        step=0,
        index=0,
        node=address("0x" + "a1" * 20),
        checkpoint=VERSION,
        environment="lookup",
        environment_version="1",
        arithmetic=Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32),
    )
    return RolloutFile(header, tuple(samples))


def test_one_prefill_of_the_whole_dialogue_replays_and_proves_its_drawn_tokens(
    folder: Path, expected: list[PlayedDialogue], tmp_path: Path
) -> None:
    """Noise continues across turns: a draw with restarted noise would be a mismatch."""
    assert sum(len(one.turns) for one in expected) > 2 * len(expected)
    assert any(len(one.drawn.tokens) > 64 for one in expected)
    file = file_of(expected, folder)
    path = tmp_path / "file.parquet"
    write_rollouts(path, file)
    file = read_rollouts(path)
    policy = load_policy(folder, dtype=Dtype.FLOAT32, device=CPU)
    rows = [*range(len(file.samples))]
    evidence = gather(policy, file, rows, seed=SEED, parameters=RECIPE.sampling.parameters)
    for row in rows:
        found, sample = evidence[row], file.samples[row]
        assert found.gaps is not None
        assert not found.gaps.mismatches.any()
        np.testing.assert_allclose(sample.logprobs, found.logprobs, atol=1e-4)
        assert len(found.proofs) == -(-len(sample.output_tokens) // 32)
        for proof in found.proofs:
            assert proof.malformed is None
            assert not proof.exponent_mismatches
            assert proof.mantissa_median <= 1
        places = drawn_places(sample.turns, drawn=len(sample.output_tokens))
        np.testing.assert_array_equal(sample.tokens_after_prompt[places], sample.output_tokens)


@pytest.mark.parametrize("max_batch", [1, 5, 64])
def test_a_dialogue_does_not_depend_on_the_batch(max_batch: int, folder: Path, expected: list[PlayedDialogue]) -> None:
    """Turns that join at any time, in any batch, give the same dialogues as rounds of one large batch."""
    same(joined(engine_of(folder, max_batch=max_batch), dialogues_of(folder)), expected)


def test_single_answers_and_other_slots_may_share_the_batch(folder: Path, expected: list[PlayedDialogue]) -> None:
    single = [SampleRequest(sample=at, prompt_tokens=(9, 8, 7), seed=SEED) for at in range(4)]
    parameters = replace(RECIPE.sampling.parameters, temperature=0.7)
    alone = {one.sample: one for one in engine_of(folder).generate(single, parameters)}
    with shared(engine_of(folder, max_batch=5)) as engine, ThreadPoolExecutor(1) as replies:
        slots = [play(engine, dialogues_of(folder), RECIPE.sampling.parameters, replies=replies) for _ in range(2)]
        answers = {one.sample: one for one in engine.generate(single, parameters)}
        for slot in slots:
            same(sorted(slot, key=lambda one: one.sample), expected)
    for sample, answer in answers.items():
        assert answer.tokens == alone[sample].tokens
        assert answer.states_left is None


def test_turns_are_computed_again_after_memory_ran_out(
    folder: Path, expected: list[PlayedDialogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, aim = 0, RowCache.aim

    def aim_with_little_memory(cache: RowCache, positions: torch.Tensor, *, furthest: int) -> torch.Tensor:
        nonlocal failures
        if furthest > 60 and len(positions) > 4:
            failures += 1
            raise CacheFull("as if memory had run out")
        return aim(cache, positions, furthest=furthest)

    monkeypatch.setattr(RowCache, "aim", aim_with_little_memory)
    same(joined(engine_of(folder, max_batch=12), dialogues_of(folder)), expected)
    assert failures


@pytest.mark.parametrize("new_tokens", [20, 250])
def test_dialogues_end_at_their_limits(new_tokens: int, folder: Path) -> None:
    """The new tokens of all turns, and the context of 256, limit the last turn."""
    recipe, ends = dialogue_recipe(new_tokens=new_tokens, turns=64), read_model(folder).end_tokens
    cut = 0
    for one in joined(engine_of(folder), dialogues_of(folder, recipe), recipe):
        is_cut = one.drawn.tokens[-1] not in ends
        cut += is_cut
        assert one.drawn.finish is (FinishReason.LENGTH if is_cut else FinishReason.EOS)
        assert not is_cut or len(one.drawn.tokens) == new_tokens or len(one.tokens) >= CONTEXT - 8
        assert len(one.drawn.tokens) <= new_tokens
        assert len(one.tokens) < CONTEXT
    assert cut


def test_a_model_that_never_ends_its_message_has_one_turn(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", eos_token_id=VOCABULARY - 1)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][VOCABULARY - 1] *= 0
    weights["model.embed_tokens.weight"][9] *= 40  # the output layer shares these weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for one in joined(engine_of(folder), dialogues_of(folder)):
        assert [turn.drawn for turn in one.turns] == [len(one.drawn.tokens)] == [RECIPE.sampling.max_new_tokens]
        assert one.drawn.finish is FinishReason.LENGTH


@pytest.mark.parametrize("joins", [True, False])
def test_dialogues_stop_between_turns(joins: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop comes while an environment replies, when the engine may have nothing to compute."""
    stop = threading.Event()
    dialogues = dialogues_of(folder, groups=1)
    for one in dialogues:
        monkeypatch.setattr(one, "take", _then(one.take, stop.set))
    engine = engine_of(folder)
    with shared(engine) as many, pytest.raises(GenerationStopped):
        played(many if joins else engine, dialogues, should_stop=stop.is_set)
    engine.load(folder, version=VERSION)  # no session is left open
    same(played(engine, dialogues_of(folder, groups=1)), joined(engine, dialogues_of(folder, groups=1)))


def _then(first: Callable[[Completion], None], second: Callable[[], object]) -> Callable[[Completion], None]:
    def both(turn: Completion) -> None:
        first(turn)
        second()

    return both


@pytest.mark.parametrize("joins", [True, False])
def test_an_error_of_the_environment_ends_the_slot(joins: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dialogues = dialogues_of(folder)

    def broken(_: Completion) -> None:
        raise EnvironmentFault("the environment is broken")

    monkeypatch.setattr(dialogues[5], "take", broken)
    engine = engine_of(folder)
    with shared(engine) as many, pytest.raises(EnvironmentFault, match="is broken"):
        played(many if joins else engine, dialogues)
    engine.load(folder, version=VERSION)


def test_cancelled_replies_end_the_slot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task ends its executor with the replies that wait in it."""
    dialogues = dialogues_of(folder)
    replies: Executor = ThreadPoolExecutor(1)
    began, go_on = threading.Event(), threading.Event()
    take = dialogues[0].take

    def slow(turn: Completion) -> None:
        began.set()
        go_on.wait()
        take(turn)

    for one in dialogues:
        monkeypatch.setattr(one, "take", slow)
    with shared(engine_of(folder)) as engine:
        going = play(engine, dialogues, RECIPE.sampling.parameters, replies=replies)
        began.wait()
        replies.shutdown(wait=False, cancel_futures=True)
        go_on.set()
        with pytest.raises((GenerationStopped, RuntimeError)):
            list(going)
