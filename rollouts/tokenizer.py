"""Text to tokens and back, by the tokenizer of a policy's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from rollouts.errors import BadVersionFolder
from rollouts.model import TOKENIZER_FILE

_WITHOUT_CLOCK = "{%- set strftime_now = the_date_of_today -%}"
"""Put before a chat template: to it, there is no such function. With it, a prompt would have other tokens on the day on
which it is checked than on the day on which its answers were drawn, and honest work would look forged."""


class FolderTokenizer:
    """The tokenizer that a folder's `tokenizer.json` describes, whatever the model's type.

    transformers' `AutoTokenizer` swaps in classes of its own for some types of model, and one of them drops spaces.

    Raises:
        BadVersionFolder: There is none, or it can't be read.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / TOKENIZER_FILE).is_file():
            raise BadVersionFolder(
                f"{folder} has no {TOKENIZER_FILE}", hint="publish the tokenizer with the weights: prompts need it"
            )
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the library raises bare Exception
            raise BadVersionFolder(f"the tokenizer in {folder} can't be used: {error}") from error

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """The tokens that the model reads; with `chat`, of the user's turn in the tokenizer's chat template.

        The same on every day: a template that asks for the date takes its default, or fails if it has none.

        Raises:
            BadVersionFolder: A chat was asked for, and the tokenizer has no template, or a broken one.
        """
        if not chat:
            return list(self._tokenizer.encode(text))
        if not self._tokenizer.chat_template:
            raise BadVersionFolder(
                "the recipe wants a chat, and the tokenizer has no chat template",
                hint="add chat_template to tokenizer_config.json, or set chat to false in the recipe",
            )
        turns = [{"role": "user", "content": text}]
        try:
            templated = self._tokenizer.apply_chat_template(
                turns,
                chat_template=f"{_WITHOUT_CLOCK}{self._tokenizer.get_chat_template()}",
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template is a program, and may raise whatever it likes
            raise BadVersionFolder(f"the tokenizer's chat template fails: {error}") from error
        return list(self._tokenizer.encode(str(templated), add_special_tokens=False))

    def encode_answer(self, text: str) -> list[int]:
        """The tokens of an answer as a model would write it: nothing is put before or behind them."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    @property
    def end_token(self) -> int | None:
        """The token that its own files call the end of sequence, if they name one."""
        token: object = self._tokenizer.eos_token_id
        return token if isinstance(token, int) else None

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, special ones left out."""
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)
