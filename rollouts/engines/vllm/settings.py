"""Arguments and environment variables of vLLM. This module does not load vLLM."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from rollouts.models.facts import ModelFacts
from rollouts.models.memory import available_memory
from rollouts.precision import Dtype

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
"""Required environment variables: vLLM runs in this process, with the model runner that supports logits processors."""
_DEFAULTS = {
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}
"""Defaults that an operator may override: no log lines in vLLM's own format, no telemetry, no network access, and no
binding of threads. vLLM would bind its threads to the machine's first cores, like every other task on the machine."""

_SHARE_OF_GPU = 0.85
"""Share of the GPU's memory for weights, keys and values, and vLLM's working memory. The rest is for noise and
proofs.
"""
_SHARE_OF_FREE = 0.3
"""Maximum share of a CPU's free memory for keys and values."""
_LEAST_SHARE = 0.01
"""Share of the GPU's memory that vLLM requires to be free at its start if the size of keys and values is given. vLLM
uses this share for that check only; its default, 0.9, would refuse a second process on the same GPU."""
_BLOCK = 32
"""Positions per block of keys and values on a CPU, the fewest that vLLM's kernel supports; blocks on GPUs are smaller.
Answers share whole blocks of their prompt, so small blocks share more of it; decoding is not slower."""


def prepare_process() -> None:
    """Sets environment variables of vLLM; must be called before vLLM is first imported."""
    os.environ.update(_ENVIRONMENT)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(logging.ERROR)


def engine_arguments(
    facts: ModelFacts,
    *,
    dtype: Dtype,
    device: torch.device,
    max_batch: int,
    cache_bytes: int | None,
    prefill_only: bool = False,
) -> dict[str, Any]:
    """Returns the arguments of vLLM's `EngineArgs`.

    With `prefill_only`, keys and values take no more memory than one step of a prefill needs, so that several processes
    share a device.

    vLLM must not split prompts into chunks, because chunks would produce rows of states from which no token is drawn.
    Asynchronous scheduling is off (docs/decisions/0023).
    """
    arguments: dict[str, Any] = {
        "model": str(facts.folder),
        "dtype": dtype.value,
        "load_format": "safetensors",
        "use_tqdm_on_load": False,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "trust_remote_code": False,
        "max_model_len": facts.context,
        "max_num_seqs": max_batch,
        "max_num_batched_tokens": max(facts.context, max_batch),
        "enable_chunked_prefill": False,
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "disable_log_stats": True,
        "seed": 0,
    }
    if prefill_only:
        cache_bytes = _cache_of_prefill(facts, dtype, max_batch)
    if device.type == "cpu":
        arguments["enforce_eager"] = True
        arguments["block_size"] = _BLOCK
        cache_bytes = cache_bytes or _cache_on_cpu(facts, dtype, max_batch)
    if cache_bytes is None:
        arguments["gpu_memory_utilization"] = _SHARE_OF_GPU
    else:
        arguments |= {"kv_cache_memory_bytes": cache_bytes, "gpu_memory_utilization": _LEAST_SHARE}
    return arguments


def _cache_of_prefill(facts: ModelFacts, dtype: Dtype, max_batch: int) -> int:
    """Returns bytes for one step of a prefill, whose answers have at most `facts.context` tokens together.

    Each answer may leave most of its last block unused; two more blocks are vLLM's own and that of the try-out.
    """
    return (facts.context + (max_batch + 2) * _BLOCK) * _bytes_per_position(facts, dtype)


def _cache_on_cpu(facts: ModelFacts, dtype: Dtype, max_batch: int) -> int:
    """Returns bytes for a full batch of the longest answers, capped by a share of free memory."""
    one = -(-facts.context // _BLOCK) * _BLOCK * _bytes_per_position(facts, dtype)
    spare = _BLOCK * _bytes_per_position(facts, dtype)
    return min((max_batch + 1) * one + spare, int(available_memory(torch.device("cpu")) * _SHARE_OF_FREE))


def _bytes_per_position(facts: ModelFacts, dtype: Dtype) -> int:
    config = facts.config
    heads = config.get("num_attention_heads") or 1
    width = config.get("head_dim") or facts.hidden // heads
    size = 4 if dtype is Dtype.FLOAT32 else 2
    return 2 * (config.get("num_hidden_layers") or 1) * (config.get("num_key_value_heads") or heads) * width * size
