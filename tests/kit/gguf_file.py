"""Writes a small GGUF file of a Llama with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

HIDDEN, HEADS, LAYERS, INNER = 64, 4, 2, 96
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = ["<|endoftext|>", "<|start|>", *LETTERS, "ab", "abc"]
TEMPLATE = "{% for message in messages %}<|start|>{{ message['content'] }}<|endoftext|>{% endfor %}"


def write_gguf(file: Path, *, without: str = "") -> dict[str, Any]:
    """Writes a Llama model; returns its tensors by GGUF name."""
    draws = np.random.default_rng(1)
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}.weight"] = (HIDDEN, HIDDEN)
        shapes[f"blk.{layer}.ffn_gate.weight"] = shapes[f"blk.{layer}.ffn_up.weight"] = (INNER, HIDDEN)
        shapes[f"blk.{layer}.ffn_down.weight"] = (HIDDEN, INNER)
        shapes[f"blk.{layer}.attn_norm.weight"] = shapes[f"blk.{layer}.ffn_norm.weight"] = (HIDDEN,)
    writer: Any = GGUFWriter(str(file), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    tensors = {name: draws.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        if name != without:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
