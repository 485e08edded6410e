"""A vLLM process of the same class recomputes dialogues to the bit, from their packed file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocol.runtime.cpu_class import cpu_class
from rollouts.checks import Draws
from rollouts.dialogue.play import play_in_rounds
from rollouts.precision import Arithmetic
from rollouts.recompute.place import VllmPlace
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.turns import Turn
from tests.kit.dialogues import SEED, VERSION, dialogue_recipe, file_of, replying_dialogues, talking_folder
from tests.kit.rollout_files import with_row
from tests.kit.vllm_engine import PYTHON, EngineProcess

pytestmark = pytest.mark.needs_vllm

RECIPE = dialogue_recipe()
PLACE = VllmPlace(python=PYTHON, device="cpu")


def test_dialogues_of_a_class_are_recomputed_to_the_bit(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM for the CPU in {PYTHON.parents[1]}: run deploy/setup/vllm.sh")
    device = cpu_class()
    if device is None:
        pytest.skip("this processor has no numerics class")
    own = Arithmetic.parse(f"vllm-0.32.0/bfloat16/{device}")
    folder = talking_folder(tmp_path / "model", num_attention_heads=3, num_key_value_heads=1)
    parameters = RECIPE.sampling.parameters
    with (
        EngineProcess(tmp_path / "log") as engine,
        VllmProcess(PLACE, own) as verifier,
        ThreadPoolExecutor(1) as replies,
    ):
        engine.open(dtype=own.dtype, max_batch=8)
        engine.load(folder, version=VERSION)
        verifier.load(folder, version=VERSION)
        found = play_in_rounds(
            lambda requests: iter(engine.generate(requests, parameters).values()),
            replying_dialogues(folder, RECIPE),
            replies=replies,
        )
        file = file_of(sorted(found, key=lambda one: one.sample), folder, RECIPE)
        rows, draws = range(len(file.samples)), Draws(seed=SEED, parameters=parameters)
        assert sum(len(sample.turns) for sample in file.samples) > 2 * len(rows)
        evidence = verifier.compare(file, dict.fromkeys(reversed(rows), draws))
        for row, sample in enumerate(file.samples):
            gaps = evidence[row].gaps
            assert gaps is not None
            assert not gaps.mismatches.any()
            np.testing.assert_array_equal(evidence[row].logprobs, sample.logprobs)
            assert all(proof.malformed is None and not proof.distance_total for proof in evidence[row].proofs)
        row = next(row for row, sample in enumerate(file.samples) if len(sample.turns) > 1)
        first, *rest = file.samples[row].turns
        other = Turn(first.drawn, np.where(first.given == 9, 10, 9).astype(np.int32))
        forged = with_row(file, row, replace(file.samples[row], turns=(other, *rest)))
        changed = verifier.compare(forged, {row: draws})[row]
        same = changed.logprobs == file.samples[row].logprobs
        assert same[: first.drawn].all()
        assert not same[first.drawn :].all(), "later tokens are computed in the context of the given ones"
