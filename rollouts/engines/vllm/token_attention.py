"""Attention of vLLM on a CPU in which prefill and decoding add up long rows in the same order.

vLLM computes attention in tiles of positions, whose size depends on the number of queries (heads of tokens) of a
sequence. So prefill and decoding would add up long rows in different orders. The kernel has the tiles of decoding for
every sequence with few enough queries for one pass of its inner loop. This backend presents each sequence of a step as
pieces of so few tokens. vLLM writes all keys and values of a step before it computes attention, and the kernel computes
each query of a piece on its own, so the result is that of decoding, in every batch
(docs/decisions/0082-numerics-classes.md).

Importing this module loads vLLM.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from rollouts.engines.vllm.numerics import tokens_per_piece
from rollouts.errors import EngineFailed


class TokenAttentionBuilder(CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """Describes a step as sequences of at most `tokens_per_piece` tokens."""

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
        most = tokens_per_piece(self.num_heads // self.num_kv_heads)
        return super().build(common_prefix_len, _pieces(common_attn_metadata, most), fast_build)


class TokenAttention(CPUAttentionBackendImpl):  # type: ignore[misc]
    """vLLM's attention on a CPU, which can write the keys and values of a token to several places."""

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes keys and values.

        Args:
            layer: The layer.
            key: Keys of n tokens.
            value: Values of n tokens.
            kv_cache: The layer's blocks.
            slot_mapping: A slot for each token [n], or indices of tokens and their slots [2, m].
        """
        if slot_mapping.dim() == 2:
            rows, slot_mapping = slot_mapping.unbind()
            key, value = key[rows], value[rows]
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)


class TokenAttentionBackend(CPUAttentionBackend):  # type: ignore[misc]
    """vLLM's attention on a CPU with the parts of this module."""

    @staticmethod
    def get_impl_cls() -> type[TokenAttention]:
        """Returns the attention."""
        return TokenAttention

    @staticmethod
    def get_builder_cls() -> type[TokenAttentionBuilder]:
        """Returns the builder."""
        return TokenAttentionBuilder


def attend_by_token() -> None:
    """Makes vLLM use this backend in this process; call before the engine is made."""
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{TokenAttentionBackend.__name__}")


def _pieces(step: Any, most: int) -> Any:  # noqa: ANN401 - vLLM is not installed where types are checked
    """Splits the sequences of a step into pieces of at most `most` tokens.

    Args:
        step: Metadata of r sequences with n tokens together: `query_start_loc` [r + 1], `seq_lens` [r],
            `block_table_tensor` [r, blocks].
        most: Maximum tokens of a piece.

    Returns:
        Metadata of p sequences: the sequence of a piece ends with its last token and shares the blocks of its request.
    """
    starts, requests = step.query_start_loc[: step.num_reqs + 1], torch.arange(step.num_reqs)
    counts_r = starts.diff()
    pieces_r = -(-counts_r // most)
    rows_p = torch.repeat_interleave(requests, pieces_r)
    first_r = pieces_r.cumsum(0) - pieces_r
    begin_p = (torch.arange(len(rows_p)) - first_r[rows_p]) * most
    stop_p = torch.minimum(begin_p + most, counts_r[rows_p])
    starts_p = torch.cat([starts[rows_p] + begin_p, starts[-1:]]).to(starts.dtype)
    return dataclasses.replace(
        step,
        query_start_loc=starts_p,
        query_start_loc_cpu=starts_p,
        seq_lens=(step.seq_lens[: step.num_reqs] - counts_r)[rows_p].add(stop_p).to(step.seq_lens.dtype),
        num_reqs=len(rows_p),
        max_query_len=most,
        block_table_tensor=step.block_table_tensor[rows_p],
    )
