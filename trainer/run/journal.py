"""The journal: which rollouts each step learned from, in which order, on the disk before the first gradient.

One line of JSON for each batch, one for each version that was written, and one whenever settings are others. A line
counts once it is whole on the disk; what a crash left of the last one is cut off. So a run that was killed at any
moment learns the same batches again (decision 0030), and whoever has the files can see what a version was made of.
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
from protocol.wire.base import Milliseconds
from protocol.wire.runs import SlotIndex, Step, Version
from trainer.errors import NotWritten

JOURNAL_FILE = "journal.jsonl"

Value: TypeAlias = bool | int | float | str | list[bool | int | float | str | None] | None
"""Of one setting."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JournalFile(_Line):
    """A file of rollouts that was looked at."""

    key: WireDigest
    sha256: WireDigest
    audit: WireDigest
    """SHA-256 of the audit file that its rewards are from."""
    node: WireAddress
    index: SlotIndex
    version: Version
    checkpoint: WireDigest
    groups: Annotated[int, Field(ge=1)]


class StepBatch(_Line):
    """Batch of a step."""

    kind: Literal["batch"] = "batch"
    step: Step
    at_ms: Milliseconds
    files: tuple[JournalFile, ...]
    """All accepted, readable files in lease order, also those without learned groups."""
    groups: tuple[tuple[int, int], ...]
    """The batch, in the order in which it is learned: place of the file, and the group's number in it."""
    parts: tuple[int, ...] = ()
    """Numbers of groups per gradient part in streaming mode; empty: all at once."""


class Written(_Line):
    """A version that stands in its folder, before it is announced."""

    kind: Literal["written"] = "written"
    version: Version
    digest: WireDigest


class LearnedUnder(_Line):
    """Settings that decide what is learned, from a step on until the next of these lines."""

    kind: Literal["settings"] = "settings"
    step: Step
    values: dict[str, Value]
    """By name, as `learning.optimiser.learning_rate`."""


Entry: TypeAlias = StepBatch | Written | LearnedUnder

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class Journal:
    """A run's journal.

    Args:
        folder: Of the trainer's state; it is there.
    """

    folder: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / JOURNAL_FILE

    def append(self, entry: Entry) -> None:
        """Adds a line; when this returns it is on the disk.

        Raises:
            NotWritten: The disk is full, or refuses; the line is not there, or is cut off when the journal is read.
        """
        line = (json.dumps(entry.model_dump(mode="json"), separators=(",", ":")) + "\n").encode()
        try:
            size = self.path.stat().st_size if self.path.exists() else 0
            try:
                with self.path.open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # the first line of all may have made no file
                    os.truncate(self.path, size)
                raise
            if size == 0:
                _sync(self.folder)
        except OSError as error:
            raise NotWritten(f"{self.path} can't be written: {error.strerror or error}") from error

    def read(self) -> Recorded:
        """Reads all records; truncates a torn last line.

        Raises:
            Conflict: A line is not an entry of this release, or steps are missing.
        """
        batches: dict[int, StepBatch] = {}
        written: dict[int, Digest] = {}
        under: list[LearnedUnder] = []
        for entry in self._entries():
            match entry:
                case StepBatch():
                    if batches and entry.step != max(batches) + 1:
                        raise Conflict(f"{self.path}: after step {max(batches)} stands step {entry.step}", hint=_HINT)
                    batches[entry.step] = entry
                case Written():
                    written[entry.version] = entry.digest
                case LearnedUnder():
                    under.append(entry)
        return Recorded(batches, written, tuple(under))

    def _entries(self) -> Iterator[Entry]:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                yield _ENTRY.validate_json(line)
            except ValidationError as error:
                raise Conflict(f"{self.path}: line {number} is no entry of a journal", hint=_HINT) from error


@dataclass(frozen=True, slots=True)
class Recorded:
    """Content of a journal.

    Args:
        batches: By step, without a gap.
        written: Digests of versions.
        learned_under: Settings, the last ones last.
    """

    batches: dict[int, StepBatch]
    written: dict[int, Digest]
    learned_under: tuple[LearnedUnder, ...] = ()


_HINT = "put the journal back from a copy, or begin a new run with an empty --state"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
