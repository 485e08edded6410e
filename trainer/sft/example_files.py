"""Examples from a file: JSON lines or Parquet with two columns of text, or JSON lines with dialogues.

    {"prompt": "rev:abcd=", "completion": "dcba"}
    {"messages": [{"role": "user", "content": "rev:abcd="}, {"role": "assistant", "content": "dcba"}]}

See `trainer.sft.dialogue_rows` for dialogues. Other columns are ignored. If a row can't be read, the error names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from rollouts.dialogue.formats import FormatName
from rollouts.environments.dialogue import GivenMessage, Role
from rollouts.environments.validation import has_encoding
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.tokenizer import FolderTokenizer
from trainer.errors import BadExamples
from trainer.sft.dialogue_rows import BadDialogueError, DialogueEncoder, DialogueRow, SpokenTurn, parse_dialogue
from trainer.sft.examples import Example

_LONGEST_ROW = 16 * 1024 * 1024
_ROWS_AT_A_TIME = 1024
_COLUMNS = ("prompt", "completion")


class FileCorpus:
    """Rows of a file of examples, held in memory as text.

    Args:
        path: A Parquet file if it ends in `.parquet`, otherwise JSON lines.
        tokenizer: Tokenizer of the model.
        end: End token of completions; messages of dialogues end with that of their format, if it has one.
        chat: Whether prompts are formatted with the tokenizer's chat template.
        dialogue: Format of dialogues. None for the template of the tokenizer, if it has one.
        all_dialogues: Whether rows of prompt and completion are encoded as dialogues of one message, too.
        end_tokens: Tokens that end an answer of the model, besides `end`.

    Raises:
        BadExamples: The file can't be read, is empty, or has an invalid row. Or it has dialogues, but no format.
        BadVersionFolder: Tokenizer or model can't be used with the format.
    """

    def __init__(
        self,
        path: Path,
        *,
        tokenizer: FolderTokenizer,
        end: int,
        chat: bool | ChatFormat = False,
        dialogue: FormatName | None = None,
        all_dialogues: bool = False,
        end_tokens: Collection[int] = (),
    ) -> None:
        self._path = path
        self._tokenizer = tokenizer
        self._end = end
        self._chat = chat
        try:
            with path.open("rb") as file:
                self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
            self._rows = [
                _checked(path, number, row, all_dialogues=all_dialogues) for number, row in enumerate(rows, start=1)
            ]
        except OSError as error:
            raise BadExamples(f"{path} can't be read: {error.strerror or error}") from error
        if not self._rows:
            raise BadExamples(f"{path} has no rows")
        self._encoder: DialogueEncoder | None = None
        if any(isinstance(row, DialogueRow) for row in self._rows):
            if dialogue is None and not tokenizer.has_chat_template:
                raise BadExamples(
                    f"{path} has dialogues, but their format is not known: the tokenizer has no chat template",
                    hint="set examples.format to plain or chatml, or recipe.dialogue",
                )
            name = FormatName.TEMPLATE if dialogue is None else dialogue
            self._encoder = DialogueEncoder(
                name, tokenizer=tokenizer, chat=chat, end=end, end_tokens={end, *end_tokens}
            )

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._rows)

    def example(self, place: int) -> Example:
        """Returns one row as tokens.

        Raises:
            BadExamples: The row's prompt has no tokens, or the format can't express its dialogue.
        """
        row = self._rows[place]
        if isinstance(row, DialogueRow):
            return self._dialogue(place, row)
        prompt, completion = row
        tokens = self._tokenizer.encode(prompt, chat=self._chat)
        if not tokens:
            raise BadExamples(f"the prompt of row {place + 1} has no tokens", hint="a prompt needs at least one token")
        return Example(tuple(tokens), (*self._tokenizer.encode_answer(completion), self._end))

    def _dialogue(self, place: int, row: DialogueRow) -> Example:
        if self._encoder is None:
            raise AssertionError("a file with dialogues has an encoder")
        try:
            return self._encoder.example(row)
        except BadDialogueError as error:
            raise BadExamples(f"{self._path}: row {place + 1}: {error}") from error
        except BadVersionFolder as error:
            raise BadExamples(f"{self._path}: row {place + 1}: {error.detail}", hint=error.hint) from error


def _json_rows(path: Path) -> Iterator[object]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_ROW + 1):
            number += 1
            if len(line) > _LONGEST_ROW:
                raise BadExamples(f"{path}: row {number} has more than {_LONGEST_ROW} bytes")
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadExamples(
                    f"{path}: row {number} is not JSON: {error}", hint="one JSON object a line, or a .parquet file"
                ) from error


def _parquet_rows(path: Path) -> Iterator[object]:
    import pyarrow as pa  # noqa: PLC0415 - slow to import, and only Parquet files need it
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=list(_COLUMNS)):
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise BadExamples(
            f"{path} is not a Parquet file of examples: {str(error)[:200]}",
            hint="it needs the columns prompt and completion; dialogues are read from JSON lines",
        ) from error


def _checked(path: Path, number: int, row: object, *, all_dialogues: bool) -> tuple[str, str] | DialogueRow:
    if isinstance(row, Mapping) and "messages" in row:
        try:
            return parse_dialogue(row)
        except BadDialogueError as error:
            raise BadExamples(
                f"{path}: row {number}: {error}", hint="docs/trainer.md shows a row with messages and tools"
            ) from error
    values = [row.get(name) for name in _COLUMNS] if isinstance(row, Mapping) else []
    match values:
        case [str(prompt), str(completion)] if has_encoding(prompt) and has_encoding(completion):
            if not all_dialogues:
                return prompt, completion
            opening = (GivenMessage(role=Role.USER, text=prompt),)
            return DialogueRow(opening=opening, turns=(SpokenTurn(text=completion),))
        case [str(), str()]:
            raise BadExamples(f"{path}: row {number} has text that is not Unicode", hint="it contains a lone surrogate")
        case _:
            raise BadExamples(
                f"{path}: row {number} has no text for prompt and completion",
                hint='a row is {"prompt": "…", "completion": "…"}, or {"messages": […]}',
            )
