"""The journal: records durably, before the first gradient, which rollouts each step trains on and in which order.

The journal has one line of JSON for each batch, each written version and each change of settings, after a first line
with the format's version. Journals of releases that wrote no such line are read, too. A line counts once it is complete
on disk; an incomplete last line is cut off. So a run killed at any moment repeats the same batches
(decision 0030), and anyone with the files can verify what a version was trained on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from protocol.errors import Conflict
from protocol.identifiers import Digest, WireAddress, WireDigest
from protocol.runtime.files import check_format, sync_path
from protocol.wire.base import Milliseconds
from protocol.wire.runs import SlotIndex, Step, Version
from trainer.errors import NotWritten

JOURNAL_FILE = "journal.jsonl"
FORMAT = 1
"""Version of the journal's format; it rises with every new kind of line and every new field."""
_HEADER = {"kind": "format", "format": FORMAT}

Value: TypeAlias = bool | int | float | str | list[bool | int | float | str | None] | None
"""Value of a setting."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JournalFile(_Line):
    """A rollout file of a step."""

    key: WireDigest
    sha256: WireDigest
    audit: WireDigest
    """SHA-256 of the audit file of the accepting verdict; the audit file confirms the rewards."""
    node: WireAddress
    index: SlotIndex
    version: Version
    checkpoint: WireDigest
    groups: Annotated[int, Field(ge=1)]


class StepBatch(_Line):
    """The batch of a step."""

    kind: Literal["batch"] = "batch"
    step: Step
    at_ms: Milliseconds
    files: tuple[JournalFile, ...]
    """All accepted and valid files in lease order, including those without a group in the batch."""
    groups: tuple[tuple[int, int], ...]
    """The batch in training order: index of the file and number of the group in it."""
    parts: tuple[int, ...] = ()
    """Numbers of groups that streaming added at a time; empty without streaming."""


class Written(_Line):
    """A version that was written; this line precedes its announcement."""

    kind: Literal["written"] = "written"
    version: Version
    digest: WireDigest


class LearnedUnder(_Line):
    """Learning settings, valid from a step on until the next line of this kind."""

    kind: Literal["settings"] = "settings"
    step: Step
    values: dict[str, Value]
    """Values by name, such as `learning.optimiser.learning_rate`."""


Entry: TypeAlias = StepBatch | Written | LearnedUnder

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class Journal:
    """A run's journal.

    Args:
        folder: The trainer's state directory, which exists.
    """

    folder: Path

    @property
    def path(self) -> Path:
        """Path of the journal file."""
        return self.folder / JOURNAL_FILE

    def append(self, entry: Entry) -> None:
        """Appends a line and syncs it to disk.

        Raises:
            NotWritten: The disk is full or refuses the write; a partial line is cut off, at the latest by `read`.
        """
        line = _line(entry.model_dump(mode="json"))
        try:
            size = self.path.stat().st_size if self.path.exists() else 0
            if size == 0:
                line = _line(_HEADER) + line
            try:
                with self.path.open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # the file may not exist yet
                    os.truncate(self.path, size)
                raise
            if size == 0:
                sync_path(self.folder)
        except OSError as error:
            raise NotWritten(f"{self.path} can't be written: {error.strerror or error}") from error

    def read(self) -> Recorded:
        """Reads the journal and cuts off an incomplete last line.

        Raises:
            NewerFormat: A newer release wrote the journal, which is unchanged.
            Conflict: A line is invalid, or steps are missing; the journal is unchanged.
        """
        data, whole = self._content()
        recorded = self._recorded(data[:whole])
        if whole < len(data):
            os.truncate(self.path, whole)
        return recorded

    def copy(self) -> tuple[bytes, Recorded]:
        """Returns the complete lines and their content, also while a trainer appends to the journal.

        Raises:
            NewerFormat: A newer release wrote the journal.
            Conflict: A line is invalid, or steps are missing.
        """
        data, whole = self._content()
        return data[:whole], self._recorded(data[:whole])

    def _content(self) -> tuple[bytes, int]:
        """Returns the file's bytes, and the number of bytes of its complete lines."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return b"", 0
        return data, data.rfind(b"\n") + 1

    def _recorded(self, whole: bytes) -> Recorded:
        batches: dict[int, StepBatch] = {}
        written: dict[int, Digest] = {}
        under: list[LearnedUnder] = []
        for entry in self._entries(whole):
            match entry:
                case StepBatch():
                    if batches and entry.step != max(batches) + 1:
                        raise Conflict(f"{self.path}: step {max(batches)} is followed by step {entry.step}", hint=_HINT)
                    batches[entry.step] = entry
                case Written():
                    written[entry.version] = entry.digest
                case LearnedUnder():
                    under.append(entry)
        return Recorded(batches, written, tuple(under))

    def _entries(self, whole: bytes) -> Iterator[Entry]:
        lines = whole.splitlines()
        header = _format_of(lines[0]) if lines else None
        check_format(header, known=FORMAT, what=f"the journal {self.path}")
        for number, line in enumerate(lines, start=1):
            if number == 1 and header is not None:
                continue
            try:
                yield _ENTRY.validate_json(line)
            except ValidationError as error:
                raise Conflict(f"{self.path}: line {number} is not a journal entry", hint=_HINT) from error


def _line(content: object) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()


def _format_of(line: bytes) -> object:
    """Returns the version that a first line states; None if the line is an entry."""
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(line)
        if isinstance(content, dict) and content.get("kind") == _HEADER["kind"]:
            return content.get("format", "none")
    return None


@dataclass(frozen=True, slots=True)
class Recorded:
    """Content of a journal.

    Args:
        batches: Batches by step, without gaps.
        written: Digests by version.
        learned_under: Learning settings, oldest first.
    """

    batches: dict[int, StepBatch]
    written: dict[int, Digest]
    learned_under: tuple[LearnedUnder, ...] = ()


_HINT = "restore the journal from a backup, or begin a new run with an empty --state"
