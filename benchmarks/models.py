"""Makes models of random weights for benchmarks in a second; benchmarks depend only on their shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

_MODELS: Any = AutoModelForCausalLM  # transformers annotates its methods only in part
_TOKENIZERS: Any = PreTrainedTokenizerFast
_LOGGING: Any = transformers_logging

SHAPES: dict[str, dict[str, Any]] = {
    "tiny, 2 M": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 2},
    "small, 20 M": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 6},
    "medium, 69 M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12},
    "wide, 120 M": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16},
    "deep, 134 M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}
"""The last one has the shape of SmolLM2-135M with its own vocabulary."""


def random_model(folder: Path, shape: str, *, vocabulary: int = 8192, context: int = 4096) -> Path:
    """Writes a Llama of one of `SHAPES` with random weights, and returns its folder.

    All tokens, including the end token, are about equally probable, so few answers end before their limit.
    """
    _LOGGING.disable_progress_bar()
    given = {"num_key_value_heads": SHAPES[shape]["num_attention_heads"], "vocab_size": vocabulary} | SHAPES[shape]
    config = LlamaConfig(**given, max_position_embeddings=context, eos_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = _MODELS.from_config(config)
    model.save_pretrained(folder)
    words = WordLevel({"<end>": 0, "<unknown>": 1}, unk_token="<unknown>")
    _TOKENIZERS(tokenizer_object=Tokenizer(words)).save_pretrained(folder)
    return folder
