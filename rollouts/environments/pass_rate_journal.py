"""Journal of a difficulty filter: how often a model solved each prompt.

The file has JSON lines: first a description of the measurement (`JournalSubject`), then blocks of prompts. Each block
is written at once and flushed to disk, so the process may be killed at any moment. A last line that a crash truncated
is dropped; any other invalid line is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from protocol.errors import Conflict, InvalidInput
from protocol.runtime.files import try_lock

_LONGEST_LINE = 64 * 1024 * 1024


class JournalSubject(BaseModel):
    """Describes the measurement that a journal records.

    Only a run with an equal subject may continue the journal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Annotated[int, Field(ge=1, le=1)] = 1
    model: str
    """Digest of the policy folder."""
    arithmetic: str
    """Engine and data type that generate the answers, such as `torch/float32`."""
    environment: str
    version: str
    recipe: dict[str, JsonValue]
    """Sampling settings."""
    candidates: str
    """Digest of the candidate prompts, in order."""
    samples: int
    """Answers per prompt: the k of pass@k."""
    block: int
    """Prompts per block."""


class PromptPasses(BaseModel):
    """Measured result of a prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Annotated[int, Field(ge=0)]
    solved: Annotated[int, Field(ge=0)] = 0
    samples: Annotated[int, Field(ge=0)]
    """0 if the prompt was too long for the recipe or the model."""
    undecided: Annotated[int, Field(ge=0)] = 0
    """Number of unsolved answers whose check was ended by a limit."""

    @property
    def rate(self) -> float | None:
        """The share of solved answers; None without samples."""
        return self.solved / self.samples if self.samples else None


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    block: int
    passes: list[PromptPasses]


class PassJournal:
    """A journal on disk, open for appending.

    Args:
        path: The file; created if missing.
        measured: The subject of this run.

    Raises:
        Conflict: The journal has another subject, or another process is writing it.
        InvalidInput: The file is not a journal.
        OSError: The file can't be read or written; `add` raises this error too, e.g. if the disk is full.
    """

    def __init__(self, path: Path, measured: JournalSubject) -> None:
        self._path = path
        self.passes: list[PromptPasses] = []
        """Results so far, in the order of the candidates."""
        self.blocks = 0
        """Number of blocks in `passes`."""
        self._file = path.open("ab")
        try:
            self._lock()
            whole = self._read(measured)
            self._file.truncate(whole)
            if whole == 0:
                self._write(measured)
        except BaseException:
            self._file.close()
            raise

    def add(self, passes: Iterable[PromptPasses]) -> None:
        """Appends the next block; on return the block is on disk."""
        block = _Block(block=self.blocks, passes=list(passes))
        self._write(block)
        self._take(block)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, line: BaseModel) -> None:
        try:
            self._file.write(_line(line))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def _lock(self) -> None:
        """Locks the file: concurrent writers would interleave their blocks."""
        if not try_lock(self._file.fileno()):
            raise Conflict(f"another process is writing {self._path}", hint="wait for it, or give another --out")

    def _take(self, block: _Block) -> None:
        if block.block != self.blocks:
            raise InvalidInput(f"{self._path}: block {block.block} is in the place of block {self.blocks}")
        self.passes += block.passes
        self.blocks += 1

    def _read(self, measured: JournalSubject) -> int:
        """Reads the existing blocks; returns the number of bytes in complete lines."""
        whole = 0
        try:
            for number, line in enumerate(_whole_lines(self._path)):
                if number == 0:
                    self._check(JournalSubject.model_validate_json(line), measured)
                else:
                    self._take(_Block.model_validate_json(line))
                whole += len(line)
        except ValidationError as error:
            raise self._no_journal(error.errors()[0]["msg"]) from error
        if whole == 0 and not _line(measured).startswith(_head(self._path)):
            raise self._no_journal("it has no first line")
        return whole

    def _no_journal(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self._path} is not a journal of a difficulty filter: {why}",
            hint="give another --out, or delete the file to begin anew",
        )

    def _check(self, found: JournalSubject, wanted: JournalSubject) -> None:
        before, now = found.model_dump(), wanted.model_dump()
        changed = [name for name, value in now.items() if before[name] != value]
        if changed:
            raise Conflict(
                f"{self._path} is from another measurement: {', '.join(changed)} differs",
                hint="give another --out, or delete the file to begin anew",
            )


def _line(line: BaseModel) -> bytes:
    return line.model_dump_json().encode() + b"\n"


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST_LINE)


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
            yield line
