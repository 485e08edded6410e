"""Decodes token ids to text, for display."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from rollouts.models.facts import TOKENIZER_FILE

_CONFIG, _SPECIAL_TOKENS, _ADDED_TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
"""Files with which transformers changes the tokenizer of `tokenizer.json`."""
_LARGEST_BYTES = 1 << 20


class TextDecoder:
    """Decodes as `FolderTokenizer` does.

    It imports transformers, which takes a CPU second, only if files beside `tokenizer.json` add or change control
    tokens, which are left out of the text. Few tokenizers have such files.

    Raises:
        BadVersionFolder: The tokenizer is missing or unreadable.
    """

    def __init__(self, folder: Path) -> None:
        self._plain = _plain_tokenizer(folder)
        if self._plain is None:
            from rollouts.models.tokenizer import FolderTokenizer  # noqa: PLC0415 - imports transformers

            self._changed = FolderTokenizer(folder)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids, without control tokens."""
        if self._plain is None:
            return self._changed.decode(tokens)
        return str(self._plain.decode(list(tokens), skip_special_tokens=True))


def _plain_tokenizer(folder: Path) -> Tokenizer | None:
    """Returns the tokenizer of `tokenizer.json`; None if it is unreadable or other files may change its tokens."""
    if (folder / _ADDED_TOKENS).exists():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        named = [named for name in (_CONFIG, _SPECIAL_TOKENS) for named in _named_tokens(folder / name)]
    except Exception:  # noqa: BLE001 - tokenizers raises bare Exception, for which `FolderTokenizer` has an error
        return None
    special = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    return tokenizer if all(special.get(content) is is_special for content, is_special in named) else None


def _named_tokens(path: Path) -> Iterator[tuple[str, bool]]:
    """Yields the tokens that a file names, and whether transformers would make each a control token.

    Raises:
        ValueError: The file is too large or no JSON.
        AttributeError: The JSON has another structure.
    """
    if not path.exists():
        return
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError(f"{path} is larger than {_LARGEST_BYTES} bytes")
    for key, value in json.loads(path.read_bytes()).items():
        if key == "added_tokens_decoder":
            yield from ((token["content"], bool(token.get("special"))) for token in value.values())
        elif key.endswith("_tokens") and isinstance(value, (list, dict)):
            yield from ((_content(token), True) for token in (value.values() if isinstance(value, dict) else value))
        elif key.endswith("_token") and isinstance(value, (str, dict)):
            yield _content(value), True


def _content(token: str | dict[str, str]) -> str:
    return token if isinstance(token, str) else token["content"]
