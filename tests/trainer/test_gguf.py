"""Conversion of a GGUF file to a model folder, with a small file of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from rollouts.errors import BadVersionFolder
from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from trainer.gguf import convert_gguf
from trainer.models import open_model

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


def test_a_converted_model_has_weights_config_and_tokenizer(tmp_path: Path) -> None:
    tensors = write_gguf(tmp_path / "model.gguf")
    convert_gguf(tmp_path / "model.gguf", tmp_path / "model")
    facts = read_model(tmp_path / "model")
    assert (facts.vocabulary, facts.context, facts.hidden, set(facts.end_tokens)) == (len(TOKENS), 128, HIDDEN, {0})
    assert {tensor.dtype for tensor in facts.tensors.values()} == {"BF16"}
    model, _ = open_model(tmp_path / "model", device=torch.device("cpu"))
    expected = torch.from_numpy(tensors["token_embd.weight"]).to(torch.bfloat16).to(torch.float32)
    weight: Any = model.get_input_embeddings().weight
    assert torch.equal(weight, expected)
    tokenizer = FolderTokenizer(tmp_path / "model")
    assert tokenizer.encode_answer("abcx") == [TOKENS.index("abc"), TOKENS.index("x")]
    assert tokenizer.encode("ab", chat=True) == [1, TOKENS.index("ab"), 0]


def test_a_file_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", without="blk.1.ffn_up.weight")
    with pytest.raises(BadVersionFolder, match="are not those of a llama model"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model" * 100])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(BadVersionFolder, match="no model can be read"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "model")
