"""Memory and sharing of vLLM's keys and values."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rollouts.engines.vllm.prefix_sharing import SHARED, limit_sharing
from rollouts.engines.vllm.settings import engine_arguments
from rollouts.models.facts import ModelFacts, read_model
from rollouts.precision import Dtype
from tests.kit.tiny_model import tiny_folder

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CONTEXT, ROWS, BLOCK = 512, 64, 32
POSITION = 2 * 2 * 1 * 32 * 2
"""Bytes of a position in bfloat16: keys and values of 2 layers with 1 head of 32 values."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    return read_model(
        tiny_folder(
            tmp_path_factory.mktemp("model"),
            kind="llama",
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=CONTEXT,
        )
    )


def arguments(facts: ModelFacts, device: torch.device, **options: bool) -> dict[str, object]:
    return engine_arguments(facts, dtype=Dtype.BFLOAT16, device=device, max_batch=ROWS, cache_bytes=None, **options)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_process_that_only_prefills_takes_the_memory_of_one_step(facts: ModelFacts, device: torch.device) -> None:
    """Without the bound, the process would take most of the GPU's memory, or 64 of the longest answers on a CPU."""
    found = arguments(facts, device, prefill_only=True)
    assert found["kv_cache_memory_bytes"] == (CONTEXT + (ROWS + 2) * BLOCK) * POSITION
    assert found["gpu_memory_utilization"] == 0.01, "vLLM requires this share to be free at its start"


def test_a_process_that_generates_takes_most_of_a_gpu(facts: ModelFacts) -> None:
    found = arguments(facts, GPU)
    assert found["gpu_memory_utilization"] == 0.85
    assert "kv_cache_memory_bytes" not in found


def test_a_process_that_generates_on_a_cpu_has_room_for_a_full_batch(facts: ModelFacts) -> None:
    assert arguments(facts, CPU)["kv_cache_memory_bytes"] == ((ROWS + 1) * CONTEXT + BLOCK) * POSITION


@pytest.mark.parametrize("prefill_only", [True, False])
def test_equal_beginnings_share_keys_and_values_in_small_blocks(facts: ModelFacts, prefill_only: bool) -> None:
    on_cpu, on_gpu = (arguments(facts, device, prefill_only=prefill_only) for device in (CPU, GPU))
    assert (on_cpu["enable_prefix_caching"], on_cpu["block_size"]) == (True, 32)
    assert on_gpu["enable_prefix_caching"] is True
    assert "block_size" not in on_gpu


@pytest.mark.parametrize(("shared", "blocks"), [(0, 0), (31, 0), (32, 1), (69, 2), (200, 4)])
def test_blocks_with_a_needed_token_are_never_found(shared: int, blocks: int) -> None:
    core = SimpleNamespace(
        request_block_hasher=lambda request: request.vllms,
        vllm_config=SimpleNamespace(cache_config=SimpleNamespace(block_size=32)),
    )
    limit_sharing(core)

    def hashes() -> list[bytes]:
        """Returns the hashes of a request with four full blocks, three at first and one later."""
        request = SimpleNamespace(block_hashes=[], sampling_params=SimpleNamespace(extra_args={SHARED: shared}))
        for request.vllms in ([b"0", b"1", b"2"], [b"3"]):
            request.block_hashes += core.request_block_hasher(request)
        return list(request.block_hashes)

    one, other = hashes(), hashes()
    assert one[:blocks] == other[:blocks] == [b"0", b"1", b"2", b"3"][:blocks]
    assert not set(one[blocks:]) & set(other[blocks:])
