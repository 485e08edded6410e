"""Within the numerics class of a GPU, vLLM's prefill reproduces its generation to the bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.numerics import SEED, differing, file_of, requests_of
from protocol.identifiers import ZERO_DIGEST
from rollouts.checks import Draws
from rollouts.precision import Dtype
from rollouts.recompute.place import VllmPlace, classes_at
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.sampling.parameters import SamplingParameters
from tests.kit.tiny_model import tiny_folder

PLACE = VllmPlace()
"""The environment of the tests, which has vLLM for GPUs on the machines that this test is for."""
VOCABULARY = 8192


@pytest.mark.needs_gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
@pytest.mark.timeout(1200)
def test_prefill_on_a_gpu_reproduces_generation(tmp_path: Path) -> None:
    classes = {one.dtype: one for one in classes_at(PLACE)}
    folder = tiny_folder(
        tmp_path / "model", kind="llama", vocab_size=VOCABULARY, hidden_size=256, intermediate_size=704,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        initializer_range=0.1,
    )  # fmt: skip
    parameters = SamplingParameters(max_new_tokens=512)
    requests = requests_of(VOCABULARY, 64, shortest=3, longest=400)
    found: Counter[str] = Counter()
    for batch in (1, 7, 64):
        own = classes[Dtype.BFLOAT16]
        with VllmProcess(PLACE, own, batch=batch) as engine, VllmProcess(PLACE, own) as verifier:
            engine.load(folder, version=ZERO_DIGEST)
            verifier.load(folder, version=ZERO_DIGEST)
            some = requests[: max(8, batch)]
            file = file_of(some, engine.generate(some, parameters), own)
            rows = dict.fromkeys(reversed(range(len(some))), Draws(seed=SEED, parameters=parameters))
            found += differing(file, verifier.compare(file, rows))
    assert found.pop("tokens") >= 20_000
    assert not found
