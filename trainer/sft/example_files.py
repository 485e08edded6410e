"""Prompts and completions from a file: JSON lines or Parquet with two columns of text.

    {"prompt": "rev:abcd=", "completion": "dcba"}

Other columns are ignored. If a row can't be read, the error names the row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from rollouts.environments.validation import has_encoding
from rollouts.models.chat import ChatFormat
from rollouts.models.tokenizer import FolderTokenizer
from trainer.errors import BadExamples
from trainer.sft.examples import Example

_LONGEST_ROW = 16 * 1024 * 1024
_ROWS_AT_A_TIME = 1024
_COLUMNS = ("prompt", "completion")


class FileCorpus:
    """Rows of a file of examples, held in memory as text.

    Args:
        path: A Parquet file if it ends in `.parquet`, otherwise JSON lines.
        tokenizer: Tokenizer of the model.
        end: End token of completions.
        chat: Whether prompts are formatted with the tokenizer's chat template.

    Raises:
        BadExamples: The file can't be read, is empty, or has an invalid row.
    """

    def __init__(self, path: Path, *, tokenizer: FolderTokenizer, end: int, chat: bool | ChatFormat = False) -> None:
        self._tokenizer = tokenizer
        self._end = end
        self._chat = chat
        try:
            with path.open("rb") as file:
                self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
            self._rows = [_checked(path, number, row) for number, row in enumerate(rows, start=1)]
        except OSError as error:
            raise BadExamples(f"{path} can't be read: {error.strerror or error}") from error
        if not self._rows:
            raise BadExamples(f"{path} has no rows")

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._rows)

    def example(self, place: int) -> Example:
        """Returns one row as tokens.

        Raises:
            BadExamples: The row's prompt has no tokens.
        """
        prompt, completion = self._rows[place]
        tokens = self._tokenizer.encode(prompt, chat=self._chat)
        if not tokens:
            raise BadExamples(f"the prompt of row {place + 1} has no tokens", hint="a prompt needs at least one token")
        return Example(tuple(tokens), (*self._tokenizer.encode_answer(completion), self._end))


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
        raise BadExamples(f"{path} is not a Parquet file of examples: {str(error)[:200]}") from error


def _checked(path: Path, number: int, row: object) -> tuple[str, str]:
    values = [row.get(name) for name in _COLUMNS] if isinstance(row, Mapping) else []
    match values:
        case [str(prompt), str(completion)] if has_encoding(prompt) and has_encoding(completion):
            return prompt, completion
        case [str(), str()]:
            raise BadExamples(f"{path}: row {number} has text that is not Unicode", hint="it contains a lone surrogate")
        case _:
            raise BadExamples(
                f"{path}: row {number} has no text for prompt and completion",
                hint='a row is {"prompt": "…", "completion": "…"}',
            )
