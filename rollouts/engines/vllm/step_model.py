"""Runs steps of a prefill in the model of a vLLM worker on a CPU, without vLLM's scheduler and sampler.

The scheduler computes each answer as a request. It shares whole blocks of prompts only, and samples a token for each
answer. A prefill knows all tokens in advance, so it needs none of this.

Importing this module loads vLLM.

Shapes: n tokens of a step, k tokens that produced tokens of answers, h hidden, v tokens of the vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from rollouts.engines.vllm.prefill_steps import PrefillStep
from rollouts.engines.vllm.token_attention import TokenAttentionBackend
from rollouts.errors import EngineFailed


class _Worker(Protocol):
    model_runner: Any


class StepModel:
    """The model of a vLLM worker whose attention is `TokenAttentionBackend`.

    Args:
        worker: The worker.

    Raises:
        EngineFailed: The model's layers do not share one kind of keys and values.
    """

    def __init__(self, worker: _Worker) -> None:
        self._runner = worker.model_runner
        config = self._runner.kv_cache_config
        groups = [group for groups in self._runner.attn_groups for group in groups]
        if len(config.kv_cache_groups) != 1 or any(group.backend is not TokenAttentionBackend for group in groups):
            raise EngineFailed("numerics classes of CPUs support causal decoders only", hint="use torch/float32")
        self._groups = groups
        self.block: int = config.kv_cache_groups[0].kv_cache_spec.block_size
        """Positions of a block."""
        self.blocks: int = config.num_blocks
        """Number of blocks, including vLLM's own block 0."""

    @torch.inference_mode()
    def states(self, step: PrefillStep) -> torch.Tensor:
        """Computes a step; returns the states that produced tokens of answers, [K, H].

        No request of vLLM may hold keys and values.
        """
        layers = self._runner.compilation_config.static_forward_context
        slots, metadata = torch.from_numpy(step.writes_2m), self._metadata(step)
        self._clear(torch.from_numpy(step.partial))
        with set_forward_context(
            metadata, self._runner.vllm_config, num_tokens=len(step.tokens_n), slot_mapping=dict.fromkeys(layers, slots)
        ):
            states_nh = self._runner.model(
                input_ids=torch.from_numpy(step.tokens_n),
                positions=torch.from_numpy(step.positions_n),
                intermediate_tensors=None,
                inputs_embeds=None,
            )
        states_kh: torch.Tensor = states_nh[torch.from_numpy(step.wanted_k)]
        return states_kh

    def _metadata(self, step: PrefillStep) -> dict[str, Any]:
        starts = torch.from_numpy(step.starts)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.from_numpy(step.lengths_r),
            num_reqs=len(step.lengths_r),
            num_actual_tokens=len(step.tokens_n),
            max_query_len=int((step.starts[1:] - step.starts[:-1]).max()),
            max_seq_len=int(step.lengths_r.max()),
            block_table_tensor=torch.from_numpy(step.blocks_rw),
            slot_mapping=torch.from_numpy(step.writes_2m[1]),
            causal=True,
        )
        built = [(group, group.build_metadata(common)) for group in self._groups]
        return {name: metadata for group, metadata in built for name in group.layer_names}

    def _clear(self, blocks: torch.Tensor) -> None:
        """Sets the values of blocks to zero.

        The kernel multiplies the values of unused positions of a block by zero, so infinity or NaN of an earlier file
        would change this one.
        """
        for group in self._groups:
            for name in group.layer_names:
                cache = self._runner.compilation_config.static_forward_context[name].kv_cache
                cache.view(*cache.shape[:2], 2, -1)[:, :, 1].index_fill_(0, blocks, 0)
