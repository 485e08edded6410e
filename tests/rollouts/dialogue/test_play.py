"""Played dialogues of tiny real models: provable by one prefill, replayable, and independent of the batch."""

from __future__ import annotations

import re
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

from rollouts.dialogue.formats import FormatName
from rollouts.dialogue.play import Dialogue, PlayedDialogue, play
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Completion, FinishReason, SampleRequest
from rollouts.engines.shared import SharedEngine
from rollouts.engines.torch.cache import CacheFull, RowCache
from rollouts.engines.torch.engine import TorchEngine
from rollouts.environments.errors import EnvironmentFault
from rollouts.files.schema import read_rollouts, write_rollouts
from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype
from rollouts.recipe import DialogueChoice, Recipe
from tests.kit.dialogues import SEED, VERSION, check_by_prefill, dialogue_recipe, file_of, talking_folder
from tests.kit.dialogues import replying_dialogues as dialogues_of
from tests.kit.tiny_model import CONTEXT, VOCABULARY, rewrite_json, tiny_folder

CPU = torch.device("cpu")
RECIPE = dialogue_recipe()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking_folder(tmp_path_factory.mktemp("talking") / "model")


def engine_of(folder: Path, *, max_batch: int = 64, cache_bytes: int | None = None) -> TorchEngine:
    engine = TorchEngine(dtype=Dtype.FLOAT32, device=CPU, max_batch=max_batch, cache_bytes=cache_bytes)
    engine.load(folder, version=VERSION)
    return engine


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
    return played(engine_of(folder), dialogues_of(folder, RECIPE))


def same(found: Sequence[PlayedDialogue], wanted: Sequence[PlayedDialogue]) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert [one.drawn.tokens for one in found] == [one.drawn.tokens for one in wanted]
    assert [one.reward for one in found] == [one.reward for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.drawn.logprobs, theirs.drawn.logprobs, atol=1e-4)
        assert len(ours.drawn.proofs) == len(theirs.drawn.proofs) == 258 * -(-len(ours.drawn.tokens) // 32)


def test_one_prefill_of_the_whole_dialogue_replays_and_proves_its_drawn_tokens(
    folder: Path, expected: list[PlayedDialogue], tmp_path: Path
) -> None:
    """Noise continues across turns: a draw with restarted noise would be a mismatch."""
    assert sum(len(one.turns) for one in expected) > 2 * len(expected)
    assert any(len(one.drawn.tokens) > 64 for one in expected)
    file = file_of(expected, folder, RECIPE)
    path = tmp_path / "file.parquet"
    write_rollouts(path, file)
    file = read_rollouts(path)
    check_by_prefill(file, folder, RECIPE)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("name", [FormatName.CHATML, FormatName.TEMPLATE])
def test_dialogues_of_chats_are_proved_and_replayed(name: FormatName, tmp_path: Path) -> None:
    folder = talking_folder(tmp_path / "model", max_position_embeddings=512)
    for file in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        file.write_text(file.read_text().replace("<end>", "<|im_end|>").replace("<begin>", "<|im_start|>"))
    rewrite_json(folder / "tokenizer_config.json", chat_template=CHATML)
    choice = DialogueChoice(format=name, turns=4, reply_tokens=64)
    recipe = dialogue_recipe(new_tokens=60).model_copy(update={"dialogue": choice, "max_prompt_tokens": 64})
    found = played(engine_of(folder), dialogues_of(folder, recipe), recipe)
    assert sum(len(one.turns) for one in found) > 2 * len(found)
    one = FolderTokenizer(folder)
    for turn in [turn for each in found for turn in each.turns if len(turn.given)]:
        given = "".join(one.token_text(token) for token in turn.given.tolist())
        assert re.fullmatch(r"\n<\|im_start\|>user\n.*<\|im_end\|>\n<\|im_start\|>assistant\n", given, re.DOTALL)
    check_by_prefill(file_of(found, folder, recipe), folder, recipe)


@pytest.mark.parametrize("max_batch", [1, 5, 64])
def test_a_dialogue_does_not_depend_on_the_batch(max_batch: int, folder: Path, expected: list[PlayedDialogue]) -> None:
    """Turns that join at any time, in any batch, give the same dialogues as rounds of one large batch."""
    same(joined(engine_of(folder, max_batch=max_batch), dialogues_of(folder, RECIPE)), expected)


def test_single_answers_and_other_slots_may_share_the_batch(folder: Path, expected: list[PlayedDialogue]) -> None:
    single = [SampleRequest(sample=at, prompt_tokens=(9, 8, 7), seed=SEED) for at in range(4)]
    parameters = replace(RECIPE.sampling.parameters, temperature=0.7)
    alone = {one.sample: one for one in engine_of(folder).generate(single, parameters)}
    with shared(engine_of(folder, max_batch=5)) as engine, ThreadPoolExecutor(1) as replies:
        slots = [
            play(engine, dialogues_of(folder, RECIPE), RECIPE.sampling.parameters, replies=replies) for _ in range(2)
        ]
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
    same(joined(engine_of(folder, max_batch=12), dialogues_of(folder, RECIPE)), expected)
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
    for one in joined(engine_of(folder), dialogues_of(folder, RECIPE)):
        assert [turn.drawn for turn in one.turns] == [len(one.drawn.tokens)] == [RECIPE.sampling.max_new_tokens]
        assert one.drawn.finish is FinishReason.LENGTH


@pytest.mark.parametrize("joins", [True, False])
def test_dialogues_stop_between_turns(joins: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop comes while an environment replies, when the engine may have nothing to compute."""
    stop = threading.Event()
    dialogues = dialogues_of(folder, RECIPE, groups=1)
    for one in dialogues:
        monkeypatch.setattr(one, "take", _then(one.take, stop.set))
    engine = engine_of(folder)
    with shared(engine) as many, pytest.raises(GenerationStopped):
        played(many if joins else engine, dialogues, should_stop=stop.is_set)
    engine.load(folder, version=VERSION)  # no session is left open
    same(played(engine, dialogues_of(folder, RECIPE, groups=1)), joined(engine, dialogues_of(folder, RECIPE, groups=1)))


def _then(first: Callable[[Completion], None], second: Callable[[], object]) -> Callable[[Completion], None]:
    def both(turn: Completion) -> None:
        first(turn)
        second()

    return both


@pytest.mark.parametrize("joins", [True, False])
def test_an_error_of_the_environment_ends_the_slot(joins: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dialogues = dialogues_of(folder, RECIPE)

    def broken(_: Completion) -> None:
        raise EnvironmentFault("the environment is broken")

    monkeypatch.setattr(dialogues[5], "take", broken)
    engine = engine_of(folder)
    with shared(engine) as many, pytest.raises(EnvironmentFault, match="is broken"):
        played(many if joins else engine, dialogues)
    engine.load(folder, version=VERSION)


def test_cancelled_replies_end_the_slot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task ends its executor with the replies that wait in it."""
    dialogues = dialogues_of(folder, RECIPE)
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
