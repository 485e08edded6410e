"""A tokenizer of bytes with the control tokens of ChatML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollouts.models.tokenizer import FolderTokenizer

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_chat_tokenizer(folder: Path, *, template: str | None = None) -> FolderTokenizer:
    """Writes the tokenizer's files into a folder, and opens it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    of_bytes = Tokenizer(models.BPE({letter: token for token, letter in enumerate(alphabet)}, merges=[]))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of_bytes.decoder = decoders.ByteLevel()
    of_bytes.add_special_tokens([START, END])
    fast: Any = PreTrainedTokenizerFast  # transformers annotates its methods in parts only
    fast(tokenizer_object=of_bytes, eos_token=END).save_pretrained(folder)
    if template is not None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return FolderTokenizer(folder)
