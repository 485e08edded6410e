"""Draws of the torch engine follow the model's softmax and do not depend on the composition of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.interface import SampleRequest
from rollouts.engines.torch.engine import TorchEngine
from rollouts.models.policy import load_policy
from rollouts.precision import Dtype
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import gaps
from tests.kit.tiny_model import tiny_folder

CPU = torch.device("cpu")
SEED = b"\x77" * 32
PROMPT = (21, 8, 25, 42, 4, 5, 40)


def engine_of(folder: Path, *, max_batch: int) -> TorchEngine:
    engine = TorchEngine(dtype=Dtype.FLOAT32, device=CPU, max_batch=max_batch)
    engine.load(folder, version=ZERO_DIGEST)
    return engine


@pytest.fixture(scope="module")
def one_by_one(llama: Path) -> TorchEngine:
    return engine_of(llama, max_batch=1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_first_tokens_follow_the_softmax_of_the_prompt(temperature: float, qwen2: Path) -> None:
    """4,000 fixed samples; tokens expected less than five times are pooled.

    G has about as many degrees of freedom as there are cells; that is its mean, and twice that its variance.
    """
    requests = [SampleRequest(sample=sample, prompt_tokens=PROMPT, seed=SEED) for sample in range(4000)]
    parameters = SamplingParameters(max_new_tokens=1, temperature=temperature)
    answers = engine_of(qwen2, max_batch=512).generate(requests, parameters, with_proofs=False)
    counts = torch.bincount(torch.tensor([answer.tokens[0] for answer in answers]), minlength=64).double()
    policy = load_policy(qwen2, dtype=Dtype.FLOAT32, device=CPU)
    logits = policy.states_and_logits(torch.tensor([PROMPT]))[1][0, -1]
    expected = torch.softmax(logits.double() / temperature, 0) * len(requests)
    frequent = expected >= 5
    seen = torch.cat([counts[frequent], counts[~frequent].sum()[None]]).clamp_min(1e-9)
    wanted = torch.cat([expected[frequent], expected[~frequent].sum()[None]])
    statistic = float(2 * (seen * (seen / wanted).log()).sum())
    cells = len(wanted) - 1
    assert cells > 20
    assert statistic < cells + 5 * (2 * cells) ** 0.5
    greedy = torch.zeros_like(wanted)
    greedy[int(wanted.argmax())] = 1
    assert float(seen.sum() - seen[greedy.bool()]) > 1000, "not merely the most probable token"


@settings(derandomize=True, max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    each=st.integers(1, 4),
    max_batch=st.integers(2, 9),
    new_tokens=st.integers(1, 24),
    data=st.data(),
)
def test_answers_do_not_depend_on_the_composition_of_batches(
    lengths: list[int],
    each: int,
    max_batch: int,
    new_tokens: int,
    data: st.DataObject,
    llama: Path,
    one_by_one: TorchEngine,
) -> None:
    """Any prompts (some equal, some of one token), in any order and batch size, compared with one answer at a time."""
    prompts = [tuple(4 + (place * 7 + length) % 50 for place in range(length)) for length in lengths]
    requests = [
        SampleRequest(sample=group * each + place, prompt_tokens=prompt, seed=SEED)
        for group, prompt in enumerate(prompts)
        for place in range(each)
    ]
    mixed = data.draw(st.permutations(requests))
    parameters = SamplingParameters(max_new_tokens=new_tokens)
    together = list(engine_of(llama, max_batch=max_batch).generate(mixed, parameters))
    alone = {one.sample: one.tokens for one in one_by_one.generate(requests, parameters, with_proofs=False)}
    assert len(together) == len(requests)
    assert {one.sample: one.tokens for one in together} == alone
    assert all(len(one.proofs) == 258 * -(-len(one.tokens) // 32) for one in together)


@pytest.mark.parametrize("kind", ["qwen3", "mistral", "gpt_neox", "granite"])
def test_other_architectures_are_replayed_by_a_prefill(kind: str, tmp_path: Path) -> None:
    """Norms on queries and keys, biases, partial rotary embeddings, and logits scaled after the last layer."""
    changes: dict[str, Any] = {"mistral": {"sliding_window": None}, "granite": {"logits_scaling": 2.0}}
    folder = tiny_folder(tmp_path / kind, kind=kind, **changes.get(kind, {}))
    requests = [SampleRequest(sample=at, prompt_tokens=PROMPT[: 1 + 2 * (at // 2)], seed=SEED) for at in range(8)]
    parameters = SamplingParameters(max_new_tokens=24)
    answers = {one.sample: one for one in engine_of(folder, max_batch=5).generate(requests, parameters)}
    policy = load_policy(folder, dtype=Dtype.FLOAT32, device=CPU)
    for request in requests:
        tokens = answers[request.sample].tokens
        whole = torch.tensor([[*request.prompt_tokens, *tokens[:-1]]])
        kept = torch.arange(len(request.prompt_tokens) - 1, whole.shape[1])
        logits = policy.states_and_logits(whole, keep=kept)[1][0]
        seen = gaps(logits, tokens, seed=SEED, sample=request.sample, parameters=parameters)
        assert not seen.mismatches.any()
        np.testing.assert_allclose(seen.logprobs, answers[request.sample].logprobs, atol=1e-4)
