"""The vLLM engine on tiny real models in a separate process: it draws and proves the same as the torch engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.errors import InvalidInput
from protocol.identifiers import digest
from protocol.runtime.cpu_class import cpu_class
from rollouts.engines.errors import EngineBusy, NothingLoaded, PromptTooLong
from rollouts.engines.interface import Completion, FinishReason, SampleRequest
from rollouts.engines.torch.engine import TorchEngine
from rollouts.errors import BadVersionFolder, EngineFailed, OutOfMemory
from rollouts.models.policy import load_policy
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype
from rollouts.prefill import PrefillItem
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import gaps, summarise
from rollouts.toploc import verify_rows
from tests.kit.sessions import PlannedJob
from tests.kit.tiny_model import CONTEXT, END, rewrite_json, tiny_folder
from tests.kit.vllm_engine import PYTHON, EngineProcess
from tests.rollouts.engines.prefilling import prefilled

pytestmark = pytest.mark.needs_vllm

CPU = torch.device("cpu")
SEED = b"\x33" * 32
VERSION, NEXT = digest(b"\x01" * 32), digest(b"\x02" * 32)
TEXTS = ["rev:abcdefg=", "a", "sort:2914=", "rev:wxyz=", "what is 12*(3+4)?\n" * 8]
PLAIN = SamplingParameters(max_new_tokens=40)
MASKED = SamplingParameters(max_new_tokens=30, temperature=0.8, top_k=20, top_p=0.9)


def folder_of(home: Path, kind: str, *, seed: int = 0) -> Path:
    """Makes a tiny model with heads of 32 values, because vLLM on a CPU has no attention for the usual heads of 24."""
    return tiny_folder(home / f"{kind}{seed}", kind=kind, seed=seed, num_attention_heads=3, num_key_value_heads=1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def mine(home: Path) -> Path:
    """Returns a model whose output layer shares the embedding's weights."""
    return folder_of(home, "qwen2")


@pytest.fixture(scope="module")
def process(home: Path) -> Iterator[EngineProcess]:
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM for the CPU in {PYTHON.parents[1]}: run deploy/setup/vllm.sh")
    with EngineProcess(home / "log") as running:
        running.open()
        yield running


@pytest.fixture
def vllm(process: EngineProcess, mine: Path) -> EngineProcess:
    """Yields the engine with the same weights before every test, reloaded in place except after another shape."""
    process.load(mine, version=VERSION)
    return process


def requests_of(folder: Path, *, each: int = 4) -> list[SampleRequest]:
    encode = FolderTokenizer(folder).encode
    prompts = [tuple(encode(text)) for text in TEXTS]
    return [
        SampleRequest(sample=group * each + place, prompt_tokens=prompt, seed=SEED)
        for group, prompt in enumerate(prompts)
        for place in range(each)
    ]


def by_torch(
    folder: Path, requests: list[SampleRequest], parameters: SamplingParameters = PLAIN
) -> dict[int, Completion]:
    engine = TorchEngine(dtype=Dtype.FLOAT32, device=CPU)
    engine.load(folder, version=VERSION)
    return {one.sample: one for one in engine.generate(requests, parameters)}


def tokens_of(answers: dict[int, Completion]) -> dict[int, tuple[int, ...]]:
    return {sample: one.tokens for sample, one in answers.items()}


def check_by_prefill(
    folder: Path, requests: list[SampleRequest], answers: dict[int, Completion], parameters: SamplingParameters
) -> None:
    """Checks every token, log-probability and proof against a prefill, as a validator does."""
    policy = load_policy(folder, dtype=Dtype.FLOAT32, device=CPU)
    proved, mismatches = [], 0
    for one in requests:
        answer = answers[one.sample]
        states, logits = prefilled(policy, one, answer.tokens)
        seen = gaps(logits, answer.tokens, seed=SEED, sample=one.sample, parameters=parameters)
        assert summarise([seen]).mismatches == 0
        np.testing.assert_allclose(answer.logprobs, seen.logprobs, atol=1e-4)
        proved.append((states, answer.proofs))
    for one, results in zip(requests, verify_rows(proved), strict=True):
        assert len(results) == -(-len(answers[one.sample].tokens) // 32)
        assert all(result.malformed is None for result in results)
        mismatches += sum(result.exponent_mismatches for result in results)
    assert mismatches < 20, "of 128 points in each of many proofs; rounding decides between nearly equal values"


@pytest.mark.parametrize("parameters", [PLAIN, MASKED], ids=["plain", "masked"])
def test_vllm_draws_the_same_tokens_as_the_torch_engine(
    vllm: EngineProcess, mine: Path, parameters: SamplingParameters
) -> None:
    requests = requests_of(mine)
    answers, expected = vllm.generate(requests, parameters), by_torch(mine, requests, parameters)
    assert tokens_of(answers) == tokens_of(expected)
    for sample, one in answers.items():
        assert one.finish is expected[sample].finish
        assert one.version == VERSION
        np.testing.assert_allclose(one.logprobs, expected[sample].logprobs, atol=1e-4)
    assert {one.finish for one in answers.values()} == set(FinishReason), "this seed gives both finish reasons"
    check_by_prefill(mine, requests, answers, parameters)


def test_an_answer_is_the_same_alone_and_with_more_requests_than_rows(vllm: EngineProcess, mine: Path) -> None:
    """Seventy requests for 64 rows, so that some wait, and rows are reused while others grow."""
    requests = requests_of(mine, each=14)
    together = vllm.generate(requests, PLAIN)
    check_by_prefill(mine, requests, together, PLAIN)
    for request in requests[::10]:
        (alone,) = vllm.generate([request], PLAIN).values()
        assert alone.tokens == together[request.sample].tokens
        np.testing.assert_allclose(alone.logprobs, together[request.sample].logprobs, atol=1e-4)


def test_versions_are_replaced_in_place_without_remains_of_earlier_ones(
    vllm: EngineProcess, home: Path, mine: Path
) -> None:
    requests = requests_of(mine, each=2)
    other = folder_of(home, "qwen2", seed=5)
    for folder, version in [(other, NEXT), (mine, VERSION), (other, NEXT)]:
        vllm.load(folder, version=version)
        answers = vllm.generate(requests, PLAIN)
        assert {one.version for one in answers.values()} == {version}
        assert tokens_of(answers) == tokens_of(by_torch(folder, requests))
        check_by_prefill(folder, requests, answers, PLAIN)


def test_proofs_belong_to_the_version_that_generated(vllm: EngineProcess, home: Path, mine: Path) -> None:
    """Otherwise the proof check in the other tests could not fail."""
    requests = requests_of(mine, each=1)
    policy = load_policy(folder_of(home, "qwen2", seed=6), dtype=Dtype.FLOAT32, device=CPU)
    answers = vllm.generate(requests, PLAIN)
    rows = [(prefilled(policy, one, answers[one.sample].tokens)[0], answers[one.sample].proofs) for one in requests]
    assert all(result.exponent_mismatches > 20 for results in verify_rows(rows) for result in results)


def test_proofs_are_omitted_on_request(vllm: EngineProcess, mine: Path) -> None:
    requests = requests_of(mine, each=1)
    without = vllm.generate(requests, PLAIN, with_proofs=False)
    assert all(not one.proofs for one in without.values())
    assert tokens_of(without) == tokens_of(vllm.generate(requests, PLAIN))


def test_a_top_k_of_one_is_greedy(vllm: EngineProcess, mine: Path) -> None:
    request = requests_of(mine)[0]
    (answer,) = vllm.generate([request], SamplingParameters(max_new_tokens=12, top_k=1)).values()
    policy = load_policy(mine, dtype=Dtype.FLOAT32, device=CPU)
    assert prefilled(policy, request, answer.tokens)[1].argmax(1).tolist() == list(answer.tokens)


def test_every_end_token_of_the_generation_config_ends_an_answer(
    vllm: EngineProcess, mine: Path, tmp_path: Path
) -> None:
    requests = requests_of(mine)
    answers = vllm.generate(requests, PLAIN)
    longest = max(answers.values(), key=lambda one: len(one.tokens))
    other = longest.tokens[5]
    folder = shutil.copytree(mine, tmp_path / "model")
    rewrite_json(folder / "generation_config.json", eos_token_id=[END, other])
    vllm.load(folder, version=NEXT)
    (answer,) = vllm.generate([requests[longest.sample]], PLAIN).values()
    assert answer.tokens == longest.tokens[: longest.tokens.index(other) + 1]
    assert answer.finish is FinishReason.EOS


def test_an_end_token_at_the_limit_is_an_end(vllm: EngineProcess, mine: Path) -> None:
    requests = requests_of(mine)
    ended = [one for one in vllm.generate(requests, PLAIN).values() if one.finish is FinishReason.EOS]
    shortest = min(ended, key=lambda one: len(one.tokens))
    exact = SamplingParameters(max_new_tokens=len(shortest.tokens))
    (again,) = vllm.generate([requests[shortest.sample]], exact).values()
    assert (again.finish, again.tokens) == (FinishReason.EOS, shortest.tokens)


def test_a_prompt_and_its_answer_may_fill_the_whole_context(vllm: EngineProcess, mine: Path) -> None:
    requests = [SampleRequest(sample=sample, prompt_tokens=(9,) * (CONTEXT - 3), seed=SEED) for sample in range(3)]
    limit = SamplingParameters(max_new_tokens=3)
    check_by_prefill(mine, requests, vllm.generate(requests, limit), limit)
    with pytest.raises(PromptTooLong):
        vllm.generate(requests, SamplingParameters(max_new_tokens=4))
    with pytest.raises(InvalidInput, match="occurs twice"):
        vllm.generate([requests[0], requests[0]], limit)
    assert vllm.generate([], limit) == {}


def test_generation_stops_between_two_steps_on_request_and_can_start_again(vllm: EngineProcess, mine: Path) -> None:
    requests = requests_of(mine)
    assert vllm.stop(requests, PLAIN, after=10) == 10
    assert tokens_of(vllm.generate(requests, PLAIN)) == tokens_of(by_torch(mine, requests))


def test_weights_cannot_be_replaced_during_generation_and_an_abandoned_batch_frees_the_engine(
    vllm: EngineProcess, home: Path, mine: Path
) -> None:
    requests, other = requests_of(mine), folder_of(home, "qwen2", seed=5)
    assert vllm.leave(requests, PLAIN, folder=other) == EngineBusy.__name__
    vllm.load(other, version=NEXT)
    assert tokens_of(vllm.generate(requests, PLAIN)) == tokens_of(by_torch(other, requests))


def test_steps_without_vllms_scheduler_compute_the_same_bits(
    vllm: EngineProcess, home: Path, mine: Path, tmp_path: Path
) -> None:
    """Groups with prompts that begin alike, in an order of their own; one group needs several steps.

    A version whose values are NaN comes first. The kernel reads unused positions of blocks, so NaN would spread.
    """
    if cpu_class() is None:
        pytest.skip("this processor has no numerics class")
    draws = np.random.default_rng(0)
    prompt = draws.integers(3, 40, size=70).astype(np.int32)
    prompts = [prompt[:40], prompt, np.concatenate([prompt[:37], prompt[:9]]), prompt[:1]]
    sizes = [(1, 3), (0, 5), (3, 30), *((2, size) for size in range(1, 40)), (1, 20), (0, 33)]
    items = [PrefillItem(prompts[at], draws.integers(3, 40, size=size).astype(np.int32)) for at, size in sizes]
    expected = vllm.prefill(items, scheduled=True)
    broken = shutil.copytree(mine, tmp_path / "model")
    weights = load_file(broken / "model.safetensors")
    weights["model.layers.0.self_attn.v_proj.weight"][:] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    vllm.load(broken, version=NEXT)
    assert all(states.isnan().any() for states, _ in vllm.prefill(items, scheduled=False).values())
    vllm.load(mine, version=VERSION)
    found = vllm.prefill(items, scheduled=False)
    for at, item in enumerate(items):
        assert [len(one) for one in found[at]] == [len(item.output)] * 2
        assert all(map(torch.equal, found[at], expected[at]))


def test_a_second_engine_in_one_process_is_refused(vllm: EngineProcess, mine: Path) -> None:
    with pytest.raises(EngineBusy, match="another vllm engine"):
        vllm.open_second(mine)
    assert vllm.version() == VERSION


def test_weights_with_nan_are_reported(vllm: EngineProcess, mine: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(mine, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    vllm.load(folder, version=NEXT)
    with pytest.raises(EngineFailed, match="no finite log-sum"):
        vllm.generate(requests_of(mine), PLAIN)
    vllm.load(mine, version=VERSION)
    assert len(vllm.generate(requests_of(mine, each=1), PLAIN)) == len(TEXTS)


def test_running_out_of_memory_reduces_the_batch_and_loses_no_answer(vllm: EngineProcess, mine: Path) -> None:
    """The failure occurs within a step, so vLLM is restarted; then a batch of twenty becomes ten."""
    requests = requests_of(mine)
    vllm.fail(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), above=10)
    try:
        answers = vllm.generate(requests, PLAIN)
    finally:
        vllm.mend()
    expected = by_torch(mine, requests)
    assert tokens_of(answers) == tokens_of(expected)
    check_by_prefill(mine, requests, answers, PLAIN)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory, "not even one answer fits: CUDA out of memory"),
        (RuntimeError("device-side assert\nand more"), EngineFailed, "crashed: RuntimeError: device-side assert$"),
    ],
    ids=["memory", "crash"],
)
def test_a_crash_is_reported_with_its_message_and_the_next_load_restarts_the_engine(
    vllm: EngineProcess, mine: Path, error: Exception, kind: type[Exception], words: str
) -> None:
    request = requests_of(mine)[:1]
    vllm.fail(error, above=0)
    with pytest.raises(kind, match=words):
        vllm.generate(request, PLAIN)
    vllm.mend()
    with pytest.raises(NothingLoaded):
        vllm.generate(request, PLAIN)
    vllm.load(mine, version=NEXT)
    assert tokens_of(vllm.generate(request, PLAIN)) == tokens_of(by_torch(mine, request))


def test_after_a_failed_load_no_version_is_loaded_and_another_shape_can_be_loaded(
    vllm: EngineProcess, home: Path
) -> None:
    with pytest.raises(BadVersionFolder):
        vllm.load(home / "nowhere", version=NEXT)
    assert vllm.version() is None
    llama = folder_of(home, "llama")
    vllm.load(llama, version=NEXT)
    requests = requests_of(llama)
    answers = vllm.generate(requests, PLAIN)
    assert tokens_of(answers) == tokens_of(by_torch(llama, requests))
    check_by_prefill(llama, requests, answers, PLAIN)


def test_jobs_with_own_parameters_share_a_batch_and_a_stopped_one_frees_its_rows(
    vllm: EngineProcess, mine: Path
) -> None:
    requests = requests_of(mine)
    plan = [
        PlannedJob(requests, PLAIN),
        PlannedJob(requests, SamplingParameters(max_new_tokens=90, temperature=0.5), stop_after=30),
        PlannedJob(requests, MASKED, after=3),
    ]
    one, stopped, other = vllm.drive(plan)
    assert stopped.stopped
    assert len(stopped.completions) < len(requests)
    for result, parameters in ((one, PLAIN), (other, MASKED)):
        answers = {answer.sample: answer for answer in result.completions}
        assert tokens_of(answers) == tokens_of(by_torch(mine, requests, parameters))
        check_by_prefill(mine, requests, answers, parameters)
        for sample, answer in answers.items():
            assert [drawn.token for drawn in result.tokens if drawn.sample == sample] == list(answer.tokens)


def test_answers_to_prompts_from_the_cache_are_the_same_and_another_version_never_uses_it(
    vllm: EngineProcess, home: Path, mine: Path
) -> None:
    """The prompts have one full block; only their further tokens are computed again."""
    prompt = tuple(FolderTokenizer(mine).encode("what is 12*(3+4)?\n" * 3))
    requests = [SampleRequest(sample=sample, prompt_tokens=prompt, seed=SEED) for sample in range(6)]
    assert BLOCK < len(prompt) <= 2 * BLOCK
    other = folder_of(home, "qwen2", seed=5)
    for folder, version, is_new in ((mine, VERSION, True), (mine, VERSION, False), (other, NEXT, True)):
        if is_new:
            vllm.load(folder, version=version)
        before = vllm.cached_tokens()
        answers = vllm.generate(requests, PLAIN)
        assert vllm.cached_tokens() - before == (5 if is_new else 6) * BLOCK
        assert tokens_of(answers) == tokens_of(by_torch(folder, requests))
        check_by_prefill(folder, requests, answers, PLAIN)


BLOCK = 32
"""Positions of a block of keys and values on a CPU."""
PLACE = 2 * 2 * 1 * 32 * 4
"""Bytes of one position: layers, keys and values, heads, width, float32."""


def test_answers_preempted_by_a_full_cache_and_recomputed_are_the_same(process: EngineProcess, mine: Path) -> None:
    """Six prompts fit, and no space is left for them to grow. The prompts begin differently, so they share nothing."""
    process.open(cache_bytes=3 * CONTEXT * PLACE)
    process.load(mine, version=VERSION)
    encode = FolderTokenizer(mine).encode
    prompts = [tuple(encode(f"{first}:" + "what is 12*(3+4)?\n" * 6)) for first in "abcdefghijkl"]
    requests = [SampleRequest(sample=at, prompt_tokens=prompt, seed=SEED) for at, prompt in enumerate(prompts)]
    before, limit = process.preemptions(), SamplingParameters(max_new_tokens=120)
    answers = process.generate(requests, limit)
    assert process.preemptions() > before
    assert tokens_of(answers) == tokens_of(by_torch(mine, requests, limit))
    check_by_prefill(mine, requests, answers, limit)


def without_a_part_of_a_fused_tensor(folder: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_version_that_vllm_would_load_but_cannot_compute_is_refused(
    process: EngineProcess, mine: Path, qwen2: Path, tmp_path: Path
) -> None:
    """VLLM itself ignores the missing part, and fails for the heads only in the first step."""
    with pytest.raises(BadVersionFolder, match="148,256 elements instead of 166,688"):
        process.load(without_a_part_of_a_fused_tensor(shutil.copytree(mine, tmp_path / "model")), version=NEXT)
    assert process.version() is None
    with pytest.raises(BadVersionFolder, match="head_dim=24"):
        process.load(qwen2, version=NEXT)
    assert process.version() is None


def test_in_bfloat16_few_tokens_differ_from_the_prefill(process: EngineProcess, mine: Path) -> None:
    process.open(dtype=Dtype.BFLOAT16)
    process.load(mine, version=VERSION)
    requests = requests_of(mine)
    answers = process.generate(requests, PLAIN)
    policy = load_policy(mine, dtype=Dtype.BFLOAT16, device=CPU)
    figures = summarise(
        gaps(
            prefilled(policy, one, answers[one.sample].tokens)[1],
            answers[one.sample].tokens,
            seed=SEED,
            sample=one.sample,
            parameters=PLAIN,
        )
        for one in requests
    )
    assert figures.mismatch_share < 0.1
    assert figures.largest < 0.5
