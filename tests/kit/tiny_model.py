"""Writes a Llama or Qwen2 with 0.2 M random weights and a character tokenizer into a folder."""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

PAD, END, BEGIN, UNKNOWN = 0, 1, 2, 3
SPECIAL = ["<pad>", "<end>", "<begin>", "<unknown>"]
CHARACTERS = SPECIAL + list(ascii_lowercase + digits + " =:+-*/.,?!()<>\n\"'_")
VOCABULARY = 64
CONTEXT = 256
TEMPLATE = (
    "{% for tool in tools or [] %}tool {{ tool.function.name }}\n{% endfor %}"
    "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}"
    "{% for call in turn.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments['a'] }}{% endfor %}"
    "<end>{% endfor %}{{ mood | default('') }}> "
)

_CONFIGS: Any = AutoConfig  # transformers annotates its methods in parts only
_MODELS: Any = AutoModelForCausalLM
_TOKENIZERS: Any = PreTrainedTokenizerFast


def tiny_folder(
    folder: Path, *, kind: str = "qwen2", seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any
) -> Path:
    """Writes a model's folder and returns it. The same kind, seed, type and config give the same weights.

    Args:
        folder: Made if it is not there.
        kind: A `model_type` of transformers whose config has Llama's names.
        seed: Of the weights.
        dtype: What they are stored in.
        config: Changes to the config.
    """
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": kind == "qwen2",
        "initializer_range": 0.15,  # at the usual 0.02 all tokens are as probable as each other
        "eos_token_id": END,
        "bos_token_id": BEGIN,
        "pad_token_id": PAD,
    } | config
    of_kind = _CONFIGS.for_model(kind, **shape)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _MODELS.from_config(of_kind).to(dtype)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def chat_folder(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """Writes a tiny model with a chat template; `config` changes its config."""
    tiny_folder(folder, kind="qwen2", seed=seed, **config)
    rewrite_json(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    return folder


def tokenizer() -> Any:
    """One token for each character."""
    of_characters = Tokenizer(
        models.WordLevel({text: token for token, text in enumerate(CHARACTERS)}, unk_token=SPECIAL[UNKNOWN])
    )
    of_characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    of_characters.decoder = decoders.Fuse()
    return _TOKENIZERS(
        tokenizer_object=of_characters,
        pad_token=SPECIAL[PAD],
        eos_token=SPECIAL[END],
        bos_token=SPECIAL[BEGIN],
        unk_token=SPECIAL[UNKNOWN],
    )


def rewrite_json(path: Path, **changes: object) -> None:
    """Changes top-level fields of a JSON file; a field set to None is taken out."""
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: field for name, field in value.items() if field is not None}))
