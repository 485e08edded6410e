"""The tokenizer of a policy folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue
from tokenizers import Encoding, Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import TOKENIZER_FILE

_WITHOUT_CLOCK = "{%- set strftime_now = the_date_of_today -%}"
"""Prefix of chat templates that hides the function `strftime_now`. If a prompt contained the current date, its tokens
would differ between the day of generation and the day of the check, and honest work would look forged."""
LONG_TEXT = 4096
"""Length of a text, in characters, from which other threads may run while it is encoded."""
_MARKS = [chr(code) for code in range(0xE000, 0xF900)]
"""Unicode's private-use characters. `encode` uses one that a text does not contain as a mark: it shows the positions of
control tokens in that text.
"""


class FolderTokenizer:
    """The tokenizer described by a folder's `tokenizer.json`, regardless of the model's type.

    transformers' `AutoTokenizer` substitutes its own classes for some model types, and one of them drops spaces.

    A control token is one that the tokenizer marks as special, such as `<|im_end|>`. Only the chat template and the
    tokenizer's own rules may produce a control token. If a prompt or an answer contains the characters of a control
    token, these characters are encoded as ordinary text: data must not be able to end a turn or begin another.

    Raises:
        BadVersionFolder: The tokenizer is missing or unreadable.
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
        self._backend = self._tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._unknown: object = self._tokenizer.unk_token_id
        special = {token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special}
        self._control = special | set(self._tokenizer.all_special_ids)
        self._splitting = Tokenizer.from_str(self._backend.to_str())
        self._splitting.encode_special_tokens = True

    def encode(self, text: str, *, chat: bool | ChatFormat = False) -> list[int]:
        """Returns the token ids of a text; `chat` wraps the text as user turn in the chat template.

        A `ChatFormat` adds a system turn and passes options to the template. Control tokens in the text of the system
        turn are encoded as ordinary text, as in the prompt.

        The result does not depend on the date: a template that uses the date must have a default date of its own;
        otherwise encoding fails.

        Raises:
            BadVersionFolder: `chat` is set, but the template is missing or broken. Or the tokenizer encodes ordinary
                characters as a control token.
        """
        if not chat:
            return self._content(text, framed=True)
        if not self.has_chat_template:
            raise BadVersionFolder(
                "the recipe asks for a chat, but the tokenizer has no chat template",
                hint="add chat_template to tokenizer_config.json, or set chat to false in the recipe",
            )
        form = chat if isinstance(chat, ChatFormat) else ChatFormat()
        turns: list[dict[str, JsonValue]] = [{"role": "system", "content": form.system}] if form.system else []
        return self.encode_turns([*turns, {"role": "user", "content": text}], options=form.template)

    def encode_turns(
        self,
        turns: Sequence[dict[str, JsonValue]],
        *,
        tools: Sequence[JsonValue] = (),
        options: Mapping[str, JsonValue] | None = None,
    ) -> list[int]:
        """Returns the token ids of a chat and of the beginning of the next answer.

        Control tokens in any text of the turns and tools are encoded as ordinary text; see `encode`.

        Args:
            turns: Turns as the template reads them: objects with `role` and `content`, perhaps with further fields.
            tools: Tools that the template describes, as JSON schemas in OpenAI's form.
            options: Options of the template.

        Raises:
            BadVersionFolder: The template is missing or broken, or refuses these turns. Or the tokenizer encodes
                ordinary characters as a control token.
        """
        mark = self._free_mark([*turns, *tools], options or {})
        found: list[str] = []

        def hide(text: str) -> str:
            return self._hidden(text, mark, found)

        hidden = [_mapped(turn, hide) for turn in turns]
        templated = self._templated(hidden, tools=[_mapped(tool, hide) for tool in tools], options=options or {})
        return self._encode_templated(templated, mark, found)

    def encode_after_answer(
        self, turns: Sequence[dict[str, JsonValue]], *, options: Mapping[str, JsonValue] | None = None
    ) -> list[int]:
        """Returns the token ids from the end token of one answer to the beginning of the next one.

        The first of them is the end token. Control tokens in any text of the turns are encoded as ordinary text; see
        `encode`.

        Args:
            turns: The turns between the two answers.
            options: Options of the template.

        Raises:
            BadVersionFolder: As in `encode_turns`. Or the template ends an answer with other text than a control token.
        """
        mark = self._free_mark(list(turns), options or {})
        found: list[str] = []
        answer = f"{mark}a{mark}"  # `_hidden` puts only digits between two marks
        hidden = [_mapped(turn, lambda text: self._hidden(text, mark, found)) for turn in turns]
        templated = self._templated([*one_answer(answer), *hidden], tools=[], options=options or {})
        before, _, after = templated.partition(answer)
        if before == templated or answer in after:
            raise BadVersionFolder("the tokenizer's chat template does not write each answer exactly once")
        tokens = self._encode_templated(after, mark, found)
        if after.startswith(mark) or not tokens or tokens[0] not in self._control:
            raise BadVersionFolder(
                "the tokenizer's chat template does not write a control token directly after an answer",
                hint="end answers with the model's end token in the template, without blanks before it",
            )
        return tokens

    def rendered(
        self,
        turns: Sequence[Mapping[str, JsonValue]],
        *,
        tools: Sequence[JsonValue] = (),
        options: Mapping[str, JsonValue] | None = None,
    ) -> str:
        """Returns the text of a chat and of the beginning of the next answer, in the chat template.

        Args:
            turns: Turns with trusted texts, as in `encode_turns`.
            tools: Tools that the template describes.
            options: Options of the template.

        Raises:
            BadVersionFolder: The template is missing or broken, or refuses these turns.
        """
        return self._templated([dict(turn) for turn in turns], tools=tools, options=options or {})

    def control_token(self, text: str) -> int | None:
        """Returns the token id of a control token such as `<|im_end|>`; None if the tokenizer has no such one."""
        token: object = self._backend.token_to_id(text)
        return token if isinstance(token, int) and token in self._control else None

    def encode_answer(self, text: str) -> list[int]:
        """Returns the token ids of an answer, without any tokens before or after it.

        Raises:
            BadVersionFolder: The tokenizer encodes ordinary characters as a control token.
        """
        return self._content(text)

    @property
    def has_chat_template(self) -> bool:
        """Returns whether the tokenizer's files have a chat template."""
        return bool(self._tokenizer.chat_template)

    @property
    def end_token(self) -> int | None:
        """The end-of-sequence token named by the tokenizer's files; None if they name none."""
        token: object = self._tokenizer.eos_token_id
        return token if isinstance(token, int) else None

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def streamed_text(self, tokens: Sequence[int]) -> str:
        """Returns the text of an answer as `text_stream` gives it, token by token.

        It differs from `decode` for some tokenizers with single bytes as tokens: see `TextStream`.
        """
        stream = self.text_stream()
        return "".join([*map(stream.add, tokens), stream.end()])

    def token_text(self, token: int) -> str:
        """Returns the text of one token, also of a control token; a part of a character is a replacement character."""
        return str(self._backend.decode([token], skip_special_tokens=False))

    def text_stream(self) -> TextStream:
        """Returns a decoder for an answer whose tokens arrive one by one."""
        return TextStream(self)

    def _encode(self, text: str, *, split: bool, framed: bool = False) -> Encoding:
        """Encodes a text, with control tokens either split into characters or recognised.

        Args:
            text: Any text.
            split: Whether the characters of a control token are ordinary text.
            framed: Whether the tokenizer adds its standard tokens, such as a begin token.
        """
        backend = self._splitting if split else self._backend  # the mode is state of a tokenizer, so there are two
        if len(text) < LONG_TEXT:
            encoding: Encoding = backend.encode(text, add_special_tokens=framed)
        else:  # `encode` would hold Python's lock, and with it all other threads, for seconds
            [encoding] = backend.encode_batch([text], add_special_tokens=framed)
        return encoding

    def _content(self, text: str, *, framed: bool = False) -> list[int]:
        """Returns the token ids of an untrusted text, without control tokens."""
        encoding = self._encode(text, split=True, framed=framed)
        for token, is_frame in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
            if not is_frame and token in self._control and token != self._unknown:
                raise BadVersionFolder(
                    f"the tokenizer encodes ordinary text as the control token {self._backend.id_to_token(token)}, "
                    "because the text has the token's characters",
                    hint="leave such prompts out of the version's eligible prompts, or remove control tokens from the "
                    "tokenizer's vocabulary of ordinary text",
                )
        return list(encoding.ids)

    def _free_mark(self, *values: object) -> str:
        """Returns a private-use character that occurs in no text of these values."""
        texts = [text for value in values for text in _texts(value)]
        mark = next((each for each in _MARKS if not any(each in text for text in texts)), None)
        if mark is None:
            raise BadVersionFolder(f"a prompt contains all {len(_MARKS)} characters for private use")
        return mark

    def _encode_templated(self, templated: str, mark: str, found: Sequence[str]) -> list[int]:
        """Returns the token ids of a template's output, in which `_hidden` has replaced control tokens of the data."""
        tokens: list[int] = []
        for place, piece in enumerate(re.split(f"{mark}([0-9]+){mark}", templated)):
            if place % 2:
                tokens += self._content(found[int(piece)])
            else:
                tokens += self._encode(piece, split=False).ids
        return tokens

    def _hidden(self, text: str, mark: str, found: list[str]) -> str:
        """Replaces control tokens in a text by numbers between marks; appends the replaced strings to `found`.

        The tokenizer itself finds the control tokens, so that its rules about case, spaces and normal forms apply.
        """
        encoding = self._encode(text, split=False)
        parts: list[str] = []
        end = 0
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._control or start < end:
                continue
            if token == self._unknown and self._backend.id_to_token(token) != text[start:stop].strip():
                continue
            parts += [text[end:start], f"{mark}{len(found)}{mark}"]
            found.append(text[start:stop])
            end = stop
        return "".join([*parts, text[end:]])

    def _templated(
        self, turns: Sequence[JsonValue], *, tools: Sequence[JsonValue], options: Mapping[str, JsonValue]
    ) -> str:
        """Returns the text of a chat in the chat template, up to the beginning of the next answer."""
        try:
            templated = self._tokenizer.apply_chat_template(
                turns,
                tools=list(tools) or None,
                chat_template=f"{_WITHOUT_CLOCK}{self._tokenizer.get_chat_template(tools=list(tools) or None)}",
                tokenize=False,
                add_generation_prompt=True,
                **options,
            )
        except Exception as error:  # templates are programs and may raise anything
            raise BadVersionFolder(f"the tokenizer's chat template fails: {error}") from error
        return str(templated)


class TextStream:
    """Decodes an answer whose tokens arrive one by one.

    The pieces together are the text that `FolderTokenizer.decode` returns. A character of several tokens is returned
    with its last token.

    There is one exception: a tokenizer with byte fallback decodes all bytes beside each other as replacement characters
    if they are no UTF-8 together. The stream then has the characters among them that were complete before.
    """

    def __init__(self, tokenizer: FolderTokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._pending: list[int] = []
        """Tokens whose text was not returned."""

    def add(self, token: int) -> str:
        """Returns the text that a further token completes; empty if the last character is incomplete."""
        self._pending.append(token)
        try:
            piece = self._stream.step(self._tokenizer._backend, token)
        except Exception:  # noqa: BLE001 - tokenizers raises bare Exception if earlier text changes; see the class
            piece = self._tokenizer.decode(self._pending)
            self._stream = DecodeStream(ids=self._pending, skip_special_tokens=True)
        if piece:
            self._pending = []
        return piece or ""

    def end(self) -> str:
        """Returns the rest of the text, with replacement characters for an incomplete character."""
        return self._tokenizer.decode(self._pending)


def one_answer(text: str) -> list[dict[str, JsonValue]]:
    """Returns the turns of a chat with one answer."""
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": text}]


def _texts(value: object) -> Iterator[str]:
    """Yields all strings in a JSON value, also the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield name
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _mapped(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """Returns a JSON value with all strings changed, also the names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _mapped(one, change) for name, one in value.items()}
    return [_mapped(one, change) for one in value] if isinstance(value, list) else value
