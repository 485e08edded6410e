"""vLLM draws and proves the same dialogues as the torch engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from rollouts.dialogue.play import PlayedDialogue, play_in_rounds
from rollouts.engines.torch.engine import TorchEngine
from rollouts.precision import Dtype
from tests.kit.dialogues import (
    VERSION,
    check_by_prefill,
    dialogue_recipe,
    file_of,
    replying_dialogues,
    talking_folder,
)
from tests.kit.tiny_model import CONTEXT
from tests.kit.vllm_engine import PYTHON, EngineProcess

pytestmark = pytest.mark.needs_vllm

RECIPE = dialogue_recipe()
PLACE = 2 * 2 * 32 * 4
"""Bytes of one position: layers, keys and values, width, float32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a model with heads of 32 values, because vLLM on a CPU has no attention for heads of 24."""
    return talking_folder(tmp_path_factory.mktemp("talking") / "model", num_attention_heads=3, num_key_value_heads=1)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM for the CPU in {PYTHON.parents[1]}: run deploy/setup/vllm.sh")
    with EngineProcess(tmp_path_factory.mktemp("vllm") / "log") as running:
        yield running


def played(process: EngineProcess, folder: Path) -> list[PlayedDialogue]:
    parameters = RECIPE.sampling.parameters
    with ThreadPoolExecutor(1) as replies:
        found = play_in_rounds(
            lambda requests: iter(process.generate(requests, parameters).values()),
            replying_dialogues(folder, RECIPE),
            replies=replies,
        )
        return sorted(found, key=lambda one: one.sample)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[int, ...]]:
    engine = TorchEngine(dtype=Dtype.FLOAT32, device=torch.device("cpu"))
    engine.load(folder, version=VERSION)
    with ThreadPoolExecutor(1) as replies:
        draw = partial(engine.generate, parameters=RECIPE.sampling.parameters)
        found = play_in_rounds(draw, replying_dialogues(folder, RECIPE), replies=replies)
        return [one.tokens for one in sorted(found, key=lambda one: one.sample)]


def test_vllm_plays_the_same_dialogues_as_torch(
    process: EngineProcess, folder: Path, expected: list[tuple[int, ...]]
) -> None:
    process.open()
    process.load(folder, version=VERSION)
    cached = process.cached_tokens()
    dialogues = played(process, folder)
    assert [one.tokens for one in dialogues] == expected
    assert process.cached_tokens() - cached > 100, "later turns take earlier ones from the cache"
    check_by_prefill(file_of(dialogues, folder, RECIPE), folder, RECIPE)


@pytest.mark.parametrize("trouble", ["preemption", "memory"])
def test_turns_that_are_computed_again_are_the_same(
    trouble: str, process: EngineProcess, folder: Path, expected: list[tuple[int, ...]]
) -> None:
    process.open(cache_bytes=2 * CONTEXT * PLACE if trouble == "preemption" else None)
    process.load(folder, version=VERSION)
    before = process.preemptions()
    if trouble == "memory":
        process.fail(torch.OutOfMemoryError("as if memory had run out"), above=7)
    dialogues = played(process, folder)
    process.mend()
    assert trouble == "memory" or process.preemptions() > before
    assert [one.tokens for one in dialogues] == expected
    check_by_prefill(file_of(dialogues, folder, RECIPE), folder, RECIPE)
