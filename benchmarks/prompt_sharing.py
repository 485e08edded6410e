"""Measures vLLM's generation with and without sharing of prompts; `python -m benchmarks.prompt_sharing`.

64 answers to four prompts, on a CPU, one thread, float32: without prefix caching, and with blocks of 128 and of 32
positions (`rollouts.engines.vllm.settings`). Figures are CPU seconds, the least of three rounds with new prompts.
Models have random weights. Run it in vLLM's environment:
`OMP_NUM_THREADS=1 .tools/vllm/bin/python -m benchmarks.prompt_sharing`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.ending import end_in_order
from benchmarks.models import random_model
from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.interface import Engine, SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.engines.vllm import running, settings
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters

WORKS = (("tiny, 2 M", 100, 32), ("small, 20 M", 200, 16), ("tiny, 2 M", 20, 256), ("small, 20 M", 20, 256))
"""Model, tokens of a prompt, tokens of an answer."""
SETTINGS: dict[str, dict[str, Any]] = {
    "not shared": {"enable_prefix_caching": False},
    "blocks of 128": {"block_size": 128},
    "blocks of 32": {"block_size": 32},
}
ANSWERS, GROUP, ROUNDS = 64, 16, 3


def seconds(engine: Engine, prompt: int, tokens: int) -> float:
    """Returns the least CPU seconds of several rounds."""
    least = float("inf")
    for number in range(ROUNDS + 1):
        requests = [
            SampleRequest(
                sample=sample,
                prompt_tokens=tuple(
                    4 + (number * 31 + sample // GROUP * 7 + place * 3) % 400 for place in range(prompt)
                ),
                seed=bytes(32),
            )
            for sample in range(ANSWERS)
        ]
        began = time.process_time()
        list(engine.generate(requests, SamplingParameters(max_new_tokens=tokens if number else 2)))
        if number:  # the first round only warms up
            least = min(least, time.process_time() - began)
    return least


def main() -> None:
    """Prints a line for each model and length."""
    torch.set_num_threads(1)
    real = settings.engine_arguments
    for model, prompt, tokens in WORKS:
        found = {}
        for name, changes in SETTINGS.items():
            with (
                tempfile.TemporaryDirectory() as folder,
                patch.object(running, "engine_arguments", lambda *a, c=changes, **k: real(*a, **k) | c),
            ):
                engine = open_engine(EngineName.VLLM, dtype=Dtype.FLOAT32, device="cpu")
                engine.load(
                    random_model(Path(folder) / "model", model, vocabulary=512, context=1024), version=ZERO_DIGEST
                )
                found[name] = seconds(engine, prompt, tokens)
                engine.close()
        figures = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        print(f"{model}, prompts of {prompt} tokens, answers of {tokens}: {figures} CPU s")


if __name__ == "__main__":
    end_in_order()
    main()
