"""A tokenizer with one token per character, for models created from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainer.errors import BadSettings

PAD, END, UNKNOWN = 0, 1, 2
SPECIAL = ("<pad>", "<end>", "<unknown>")
"""Special tokens, with token ids 0 to 2; the ids of the characters follow."""

_TOKENIZERS: Any = PreTrainedTokenizerFast  # transformers annotates only some of its methods


def write_character_tokenizer(folder: Path, characters: str) -> int:
    """Writes a tokenizer's files into a folder; returns the number of its tokens.

    Raises:
        BadSettings: A character occurs twice, or there is none.
    """
    if not characters or len(set(characters)) != len(characters):
        twice = next((one for one in characters if characters.count(one) > 1), "")
        raise BadSettings(
            f"the character {twice!r} occurs twice in the vocabulary" if twice else "the vocabulary has no characters",
            hint="list each character of prompts and answers once",
        )
    tokens = [*SPECIAL, *characters]
    tokenizer = Tokenizer(
        models.WordLevel({text: token for token, text in enumerate(tokens)}, unk_token=SPECIAL[UNKNOWN])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    _TOKENIZERS(
        tokenizer_object=tokenizer, pad_token=SPECIAL[PAD], eos_token=SPECIAL[END], unk_token=SPECIAL[UNKNOWN]
    ).save_pretrained(folder)
    return len(tokens)
