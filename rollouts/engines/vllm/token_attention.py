"""Attention of vLLM on a CPU in which every token is a sequence of its own.

vLLM computes attention in tiles, whose size depends on the number of queries of a sequence. So prefill and decoding
add up long rows in different orders. This backend presents each token of a step as a sequence of one query, which is
the shape of decoding. vLLM writes all keys and values of a step before it computes attention, so the result is that of
decoding, in every batch (docs/decisions/0082-numerics-classes.md).

Importing this module loads vLLM.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionMetadataBuilder
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from rollouts.errors import EngineFailed


class TokenAttentionBuilder(CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """Describes each token of a step as a sequence of one query."""

    def build(  # the types are vLLM's, which is not installed where types are checked
        self,
        common_prefix_len: int,
        common_attn_metadata: Any,  # noqa: ANN401
        fast_build: bool = False,
    ) -> Any:  # noqa: ANN401
        """Returns vLLM's description of the step for its attention kernel.

        Raises:
            EngineFailed: The layers are not those of a causal decoder.
        """
        if self.is_cross_attention or self.is_encoder_only_attention or common_attn_metadata.causal is not True:
            raise EngineFailed("numerics classes of CPUs support causal decoders only", hint="use torch/float32")
        return super().build(common_prefix_len, _by_token(common_attn_metadata), fast_build)


class TokenAttentionBackend(CPUAttentionBackend):  # type: ignore[misc]
    """vLLM's attention on a CPU with the builder of this module."""

    @staticmethod
    def get_builder_cls() -> type[TokenAttentionBuilder]:
        """Returns the builder."""
        return TokenAttentionBuilder


def attend_by_token() -> None:
    """Makes vLLM use this backend in this process; call before the engine is made."""
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{TokenAttentionBackend.__name__}")


def _by_token(step: Any) -> Any:  # noqa: ANN401 - vLLM is not installed where types are checked
    """Splits the sequences of a step into tokens.

    Args:
        step: Metadata of r sequences with n tokens together: `query_start_loc` [r + 1], `seq_lens` [r],
            `block_table_tensor` [r, blocks].

    Returns:
        Metadata of n sequences: the sequence of a token ends with this token and shares the blocks of its request.
    """
    tokens, requests = step.num_actual_tokens, step.num_reqs
    starts = step.query_start_loc[: requests + 1]
    counts = starts.diff()
    rows_n = torch.repeat_interleave(torch.arange(requests), counts)
    lengths_n = step.seq_lens[rows_n] - starts[rows_n + 1] + torch.arange(tokens) + 1
    starts_n = torch.arange(tokens + 1, dtype=starts.dtype)
    return dataclasses.replace(
        step,
        query_start_loc=starts_n,
        query_start_loc_cpu=starts_n,
        seq_lens=lengths_n.to(step.seq_lens.dtype),
        num_reqs=tokens,
        max_query_len=1,
        block_table_tensor=step.block_table_tensor[rows_n],
    )
