"""The torch engine on tiny real models: seeded, replayable and provable answers in any batch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.errors import InvalidInput
from protocol.identifiers import Digest, digest
from rollouts.engines.errors import EngineBusy, GenerationStopped, NothingLoaded, PromptTooLong
from rollouts.engines.interface import Completion, Engine, FinishReason, SampleRequest
from rollouts.engines.torch.cache import CacheFull, RowCache
from rollouts.engines.torch.engine import TorchEngine
from rollouts.errors import BadVersionFolder, EngineFailed, OutOfMemory
from rollouts.models.policy import Policy, load_policy
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import Gaps, gaps, summarise
from rollouts.toploc import verify_rows
from tests.kit.tiny_model import CONTEXT, END, rewrite_json, tiny_folder
from tests.rollouts.engines.prefilling import prefilled

CPU = torch.device("cpu")
SEED = b"\x33" * 32
VERSION, NEXT = digest(b"\x01" * 32), digest(b"\x02" * 32)
TEXTS = ["rev:abcdefg=", "a", "sort:2914=", "rev:wxyz=", "what is 12*(3+4)?\n" * 3]
PLAIN = SamplingParameters(max_new_tokens=40)


def requests_of(folder: Path, *, each: int = 4, texts: list[str] = TEXTS) -> list[SampleRequest]:
    encode = FolderTokenizer(folder).encode
    prompts = [tuple(encode(text)) for text in texts]
    return [
        SampleRequest(sample=group * each + place, prompt_tokens=prompt, seed=SEED)
        for group, prompt in enumerate(prompts)
        for place in range(each)
    ]


def engine_of(
    folder: Path, *, dtype: Dtype = Dtype.FLOAT32, max_batch: int = 64, cache_bytes: int | None = None
) -> TorchEngine:
    engine = TorchEngine(dtype=dtype, device=CPU, max_batch=max_batch, cache_bytes=cache_bytes)
    engine.load(folder, version=VERSION)
    return engine


def by_sample(completions: Iterator[Completion]) -> dict[int, Completion]:
    return {completion.sample: completion for completion in completions}


def tokens_of(completions: Iterator[Completion]) -> dict[int, tuple[int, ...]]:
    return {completion.sample: completion.tokens for completion in completions}


@pytest.fixture(scope="module")
def engine(qwen2: Path) -> TorchEngine:
    return engine_of(qwen2)


@pytest.fixture(scope="module")
def requests(qwen2: Path) -> list[SampleRequest]:
    return requests_of(qwen2)


@pytest.fixture(scope="module")
def expected(engine: TorchEngine, requests: list[SampleRequest]) -> dict[int, Completion]:
    return by_sample(engine.generate(requests, PLAIN))


def replayed(policy: Policy, request: SampleRequest, completion: Completion, parameters: SamplingParameters) -> Gaps:
    _, logits = prefilled(policy, request, completion.tokens)
    return gaps(logits, completion.tokens, seed=SEED, sample=completion.sample, parameters=parameters)


def test_the_torch_engine_implements_the_engine_protocol(engine: TorchEngine) -> None:
    as_engine: Engine = engine
    assert (as_engine.name, as_engine.dtype, as_engine.version) == (EngineName.TORCH, Dtype.FLOAT32, VERSION)


@pytest.mark.parametrize("max_batch", [1, 3])
def test_an_answer_does_not_depend_on_the_rest_of_the_batch(
    max_batch: int, qwen2: Path, requests: list[SampleRequest], expected: dict[int, Completion]
) -> None:
    """Prompts of many lengths in rows that are reused while others grow, compared with one batch of all twenty."""
    alone = by_sample(engine_of(qwen2, max_batch=max_batch).generate(requests, PLAIN))
    assert {sample: one.tokens for sample, one in alone.items()} == {
        sample: one.tokens for sample, one in expected.items()
    }
    for sample, completion in alone.items():
        np.testing.assert_allclose(completion.logprobs, expected[sample].logprobs, atol=1e-4)


def test_the_order_of_requests_does_not_matter(
    engine: TorchEngine, requests: list[SampleRequest], expected: dict[int, Completion]
) -> None:
    mixed = [requests[place] for place in np.random.default_rng(3).permutation(len(requests))]
    answers = tokens_of(engine.generate(mixed, PLAIN, with_proofs=False))
    assert answers == {sample: completion.tokens for sample, completion in expected.items()}


MASKED = SamplingParameters(max_new_tokens=30, temperature=0.8, top_k=20, top_p=0.9)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("parameters", [PLAIN, MASKED], ids=["plain", "masked"])
def test_a_prefill_replays_every_token_and_log_probability(
    kind: str, parameters: SamplingParameters, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    asked = requests_of(folder)
    answers = by_sample(engine_of(folder).generate(asked, parameters))
    policy = load_policy(folder, dtype=Dtype.FLOAT32, device=CPU)
    seen = [replayed(policy, one, answers[one.sample], parameters) for one in asked]
    figures = summarise(seen)
    assert figures.tokens == sum(len(answer.tokens) for answer in answers.values())
    assert figures.mismatches == 0
    for one, of_one in zip(asked, seen, strict=True):
        np.testing.assert_allclose(answers[one.sample].logprobs, of_one.logprobs, atol=1e-4)


def test_in_bfloat16_few_tokens_differ_from_the_prefill(qwen2: Path) -> None:
    asked = requests_of(qwen2)
    answers = by_sample(engine_of(qwen2, dtype=Dtype.BFLOAT16).generate(asked, PLAIN))
    policy = load_policy(qwen2, dtype=Dtype.BFLOAT16, device=CPU)
    figures = summarise(replayed(policy, one, answers[one.sample], PLAIN) for one in asked)
    assert figures.mismatch_share < 0.1
    assert figures.largest < 0.5


def test_proofs_match_the_hidden_states_of_a_prefill(
    qwen2: Path, tmp_path: Path, requests: list[SampleRequest], expected: dict[int, Completion]
) -> None:
    """A few points may differ: among nearly equal values, rounding decides which 128 are the largest."""
    for folder, honest in ((qwen2, True), (tiny_folder(tmp_path / "other", seed=4), False)):
        policy = load_policy(folder, dtype=Dtype.FLOAT32, device=CPU)
        rows = [
            (prefilled(policy, one, expected[one.sample].tokens)[0], expected[one.sample].proofs) for one in requests
        ]
        mismatches = 0
        for one, results in zip(requests, verify_rows(rows), strict=True):
            assert len(results) == -(-len(expected[one.sample].tokens) // 32)
            assert all(result.malformed is None for result in results)
            mismatches += sum(result.exponent_mismatches for result in results)
        assert (mismatches < 20) == honest


def test_proofs_are_omitted_on_request(engine: TorchEngine, requests: list[SampleRequest]) -> None:
    assert all(not one.proofs for one in engine.generate(requests[:3], PLAIN, with_proofs=False))


def test_an_answer_ends_with_its_first_end_token_or_at_the_limit(expected: dict[int, Completion]) -> None:
    reasons = set()
    for completion in expected.values():
        reasons.add(completion.finish)
        assert END not in completion.tokens[:-1]
        assert len(completion.tokens) == len(completion.logprobs) <= PLAIN.max_new_tokens
        assert completion.logprobs.dtype == np.float32
        if completion.finish is FinishReason.EOS:
            assert completion.tokens[-1] == END
        else:
            assert len(completion.tokens) == PLAIN.max_new_tokens
    assert reasons == set(FinishReason), "this seed gives both finish reasons"


def test_an_end_token_at_the_limit_is_an_end(engine: TorchEngine, requests: list[SampleRequest]) -> None:
    ended = [one for one in engine.generate(requests, PLAIN) if one.finish is FinishReason.EOS]
    shortest = min(ended, key=lambda one: len(one.tokens))
    exact = SamplingParameters(max_new_tokens=len(shortest.tokens))
    again = by_sample(engine.generate([requests[shortest.sample]], exact))[shortest.sample]
    assert again.finish is FinishReason.EOS
    assert again.tokens == shortest.tokens


def test_every_end_token_of_the_generation_config_ends_an_answer(
    qwen2: Path, tmp_path: Path, expected: dict[int, Completion], requests: list[SampleRequest]
) -> None:
    longest = max(expected.values(), key=lambda one: len(one.tokens))
    other = longest.tokens[5]
    folder = shutil.copytree(qwen2, tmp_path / "model")
    rewrite_json(folder / "generation_config.json", eos_token_id=[END, other])
    answer = next(engine_of(folder).generate([requests[longest.sample]], PLAIN))
    assert answer.tokens == longest.tokens[: longest.tokens.index(other) + 1]
    assert answer.finish is FinishReason.EOS


def test_a_top_k_of_one_is_greedy(engine: TorchEngine, qwen2: Path, requests: list[SampleRequest]) -> None:
    policy = load_policy(qwen2, dtype=Dtype.FLOAT32, device=CPU)
    request = requests[0]
    answer = next(engine.generate([request], SamplingParameters(max_new_tokens=12, top_k=1)))
    assert prefilled(policy, request, answer.tokens)[1].argmax(1).tolist() == list(answer.tokens)


def test_a_prompt_and_its_answer_may_fill_the_whole_context(engine: TorchEngine, qwen2: Path) -> None:
    prompt = (9,) * (CONTEXT - 3)
    requests = [SampleRequest(sample=sample, prompt_tokens=prompt, seed=SEED) for sample in range(3)]
    answers = by_sample(engine.generate(requests, SamplingParameters(max_new_tokens=3)))
    policy = load_policy(qwen2, dtype=Dtype.FLOAT32, device=CPU)
    for request in requests:
        seen = replayed(policy, request, answers[request.sample], SamplingParameters(max_new_tokens=3))
        assert not seen.mismatches.any()
    with pytest.raises(PromptTooLong):
        engine.generate(requests, SamplingParameters(max_new_tokens=4))


def test_the_prompt_of_a_group_is_computed_once(
    qwen2: Path, monkeypatch: pytest.MonkeyPatch, requests: list[SampleRequest]
) -> None:
    def counting(self: Policy, tokens: torch.Tensor, **how: object) -> None:
        seen.append(tokens.shape[0])
        real(self, tokens, **how)  # type: ignore[arg-type]  # passed on as it came

    seen: list[int] = []
    real = Policy.fill
    engine = engine_of(qwen2, max_batch=3)  # so that a group of four is admitted in several turns
    monkeypatch.setattr(Policy, "fill", counting)
    list(engine.generate(requests, PLAIN))
    assert sum(seen) == len(TEXTS) - 1, "all except the prompt of one token, which needs no prefill"


def test_an_empty_list_of_requests_gives_no_answers(engine: TorchEngine) -> None:
    assert list(engine.generate([], PLAIN)) == []


def test_a_request_that_cannot_be_answered_is_refused_before_any_work(
    engine: TorchEngine, requests: list[SampleRequest]
) -> None:
    with pytest.raises(InvalidInput, match="occurs twice"):
        engine.generate([requests[0], requests[0]], PLAIN)


def test_generation_stops_between_two_steps_on_request(
    engine: TorchEngine, requests: list[SampleRequest], expected: dict[int, Completion]
) -> None:
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 10

    answers = engine.generate(requests, PLAIN, should_stop=should_stop)
    with pytest.raises(GenerationStopped, match="of 20 answers missing"):
        list(answers)
    assert asked == 11
    again = next(engine.generate(requests[:1], PLAIN))
    assert again.tokens == expected[0].tokens


def test_weights_cannot_be_replaced_during_generation(
    qwen2: Path, tmp_path: Path, requests: list[SampleRequest], expected: dict[int, Completion]
) -> None:
    engine = engine_of(qwen2)
    other = tiny_folder(tmp_path / "next", seed=9)
    answers = engine.generate(requests, PLAIN)
    first = next(answers)
    with pytest.raises(EngineBusy):
        engine.load(other, version=NEXT)
    with pytest.raises(EngineBusy):
        engine.generate(requests, PLAIN)
    rest = by_sample(answers) | {first.sample: first}
    assert {one.version for one in rest.values()} == {VERSION}
    assert {sample: one.tokens for sample, one in rest.items()} == {
        sample: one.tokens for sample, one in expected.items()
    }
    engine.load(other, version=NEXT)
    later = list(engine.generate(requests, PLAIN))
    assert {one.version for one in later} == {NEXT}
    assert {one.sample: one.tokens for one in later} == tokens_of(engine_of(other).generate(requests, PLAIN))


def test_an_abandoned_batch_frees_the_engine(qwen2: Path, requests: list[SampleRequest]) -> None:
    engine = engine_of(qwen2)
    next(engine.generate(requests, PLAIN))
    engine.generate(requests, PLAIN)
    engine.load(qwen2, version=NEXT)
    assert engine.version == NEXT


def test_no_version_is_loaded_after_a_failed_load(qwen2: Path, tmp_path: Path, requests: list[SampleRequest]) -> None:
    engine = engine_of(qwen2)
    with pytest.raises(BadVersionFolder):
        engine.load(tmp_path / "nowhere", version=NEXT)
    assert engine.version is None
    with pytest.raises(NothingLoaded):
        engine.generate(requests, PLAIN)
    engine.load(qwen2, version=VERSION)
    assert next(engine.generate(requests[:1], PLAIN)).version == VERSION


def test_a_closed_engine_has_no_version_loaded(qwen2: Path, requests: list[SampleRequest]) -> None:
    engine = engine_of(qwen2)
    answers = engine.generate(requests, PLAIN)
    next(answers)
    engine.close()
    engine.close()
    with pytest.raises(GenerationStopped, match="19 of 20 answers missing"):
        list(answers)
    with pytest.raises(NothingLoaded):
        engine.generate(requests, PLAIN)


PLACE = 2 * 2 * 2 * 24 * 4
"""Bytes of one position of one row: layers, keys and values, heads, width, float32."""


def test_a_small_cache_reduces_the_batch_and_loses_no_answer(
    qwen2: Path, requests: list[SampleRequest], expected: dict[int, Completion]
) -> None:
    """The longest answer needs 94 positions, so there is space for 2 rows, and a batch of 20 becomes 10, 5 and 2."""
    engine = engine_of(qwen2, cache_bytes=2 * 100 * PLACE)
    assert tokens_of(engine.generate(requests, PLAIN)) == {
        sample: completion.tokens for sample, completion in expected.items()
    }


def test_a_cache_too_small_for_one_answer_is_reported(qwen2: Path, requests: list[SampleRequest]) -> None:
    with pytest.raises(OutOfMemory, match="not even one answer fits: the cache has room for 40 positions"):
        list(engine_of(qwen2, cache_bytes=40 * PLACE).generate(requests, PLAIN))


Forward = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def failing(error: Exception, *, above: int) -> Forward:
    """Returns a forward pass that fails for more rows than `above`."""
    real = Policy.states_and_logits

    def forward(self: Policy, tokens: torch.Tensor, **how: object) -> tuple[torch.Tensor, torch.Tensor]:
        if len(tokens) > above:
            raise error
        return real(self, tokens, **how)  # type: ignore[arg-type]  # passed on as it came

    return forward


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory: you tried to"),
        MemoryError(),
    ],
    ids=["accelerator", "cpu", "python"],
)
def test_running_out_of_memory_reduces_the_batch(
    error: Exception,
    qwen2: Path,
    requests: list[SampleRequest],
    expected: dict[int, Completion],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(qwen2)
    monkeypatch.setattr(Policy, "states_and_logits", failing(error, above=6))
    answers = by_sample(engine.generate(requests, PLAIN))
    assert {sample: one.tokens for sample, one in answers.items()} == {
        sample: one.tokens for sample, one in expected.items()
    }
    assert {sample: len(one.proofs) for sample, one in answers.items()} == {
        sample: len(one.proofs) for sample, one in expected.items()
    }


def test_running_out_of_memory_for_a_single_answer_is_reported(
    qwen2: Path, requests: list[SampleRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(qwen2)
    monkeypatch.setattr(Policy, "states_and_logits", failing(torch.OutOfMemoryError("CUDA out of memory"), above=0))
    with pytest.raises(OutOfMemory, match="not even one answer fits: CUDA out of memory"):
        list(engine.generate(requests, PLAIN))


def test_a_crash_is_reported_with_its_message(
    qwen2: Path, requests: list[SampleRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(qwen2)
    monkeypatch.setattr(Policy, "states_and_logits", failing(RuntimeError("device-side assert\nand more"), above=0))
    with pytest.raises(EngineFailed, match=r"crashed: RuntimeError: device-side assert$"):
        list(engine.generate(requests, PLAIN))


def test_weights_with_nan_are_reported(qwen2: Path, tmp_path: Path, requests: list[SampleRequest]) -> None:
    folder = shutil.copytree(qwen2, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineFailed, match="20 of 20 rows of logits have no finite log-sum"):
        list(engine_of(folder).generate(requests, PLAIN))


def test_a_batch_size_of_zero_or_a_missing_device_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a batch of 0 answers"):
        TorchEngine(dtype=Dtype.FLOAT32, max_batch=0)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="no device cuda"):
            TorchEngine(dtype=Dtype.FLOAT32, device=torch.device("cuda"))


def test_a_cache_row_grows_and_keeps_its_content() -> None:
    one_token = (torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 6))
    cache = RowCache([one_token], rows=2, budget=10_000_000)
    given = torch.randn(2, 300, 2, 10, generator=torch.Generator().manual_seed(1))
    for position in range(300):
        mask = cache.aim(torch.tensor([position, position // 2]), furthest=position)
        assert mask.sum(3).flatten().tolist() == [position + 1, position // 2 + 1]
        step = given[:, position]
        keys, values = cache.update(step[:, :, None, :4], step[:, :, None, 4:], 0)
    torch.testing.assert_close(keys[0, :, :300], given[0, :, :, :4].transpose(0, 1))
    torch.testing.assert_close(values[0, :, :300], given[0, :, :, 4:].transpose(0, 1))
    torch.testing.assert_close(keys[1, :, :150], given[1, 1::2, :, :4].transpose(0, 1))
    with pytest.raises(CacheFull, match="positions need"):
        RowCache([one_token], rows=2, budget=100).reserve(50, rows=2)


def version_of(number: int) -> Digest:
    return digest(number.to_bytes(32, "big"))


def test_versions_loaded_in_sequence_generate_like_freshly_loaded_ones(tmp_path: Path, qwen2: Path) -> None:
    """In-place updates leave nothing of an earlier version."""
    folders = [tiny_folder(tmp_path / str(seed), seed=seed) for seed in range(3)]
    asked = requests_of(qwen2, each=1)
    fresh = [tokens_of(engine_of(folder).generate(asked, PLAIN)) for folder in folders]
    engine = engine_of(qwen2)
    for number in range(5):
        engine.load(folders[number % 3], version=version_of(number))
        answers = by_sample(engine.generate(asked, PLAIN))
        assert {one.version for one in answers.values()} == {version_of(number)}
        assert {sample: one.tokens for sample, one in answers.items()} == fresh[number % 3]
