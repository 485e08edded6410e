"""Conversion of a GGUF file to a model folder, with a small file of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rollouts.errors import BadVersionFolder
from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from tests.kit.gguf_file import HIDDEN, TOKENS, write_gguf
from trainer.models.gguf import convert_gguf
from trainer.models.trainable import open_model


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
