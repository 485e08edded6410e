"""Consistent copy of a trainer's state directory while the trainer works, and the way back.

The trainer appends a step to its journal before it learns from the step's files, and replaces the saved state as a
whole. It removes a step's files only after it has saved a state that includes the step. So state, journal and the
files of later steps fit together if the state is still the same file when all of them are open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cli.admin.archive import PIECE, ArchiveWriter
from protocol.errors import InvalidInput, Unavailable
from trainer.run.state.folder import STATE_FILE, saved_step
from trainer.run.state.journal import JOURNAL_FILE, Journal

PART = "trainer-state"
_TRIES = 100
_NAMES = re.compile(
    r"journal\.jsonl|progress\.jsonl|holder|state\.safetensors|rollouts/\d+/[0-9a-f]{64}\.(parquet|json)"
)


@dataclass(frozen=True, slots=True)
class TrainerCopy:
    """A trainer's state, with all of its files open.

    Args:
        step: The next step of the run when it continues from this copy.
        journal: The journal's complete lines.
        progress: Complete lines of the progress log.
        holder: Identity of the trainer.
        files: Open files by name: the saved state, and rollout files of steps that it does not include.
    """

    step: int
    journal: bytes
    progress: bytes
    holder: bytes
    files: dict[str, IO[bytes]]

    def write(self, archive: ArchiveWriter) -> None:
        """Adds the copy to a backup."""
        small = {"journal.jsonl": self.journal, "progress.jsonl": self.progress, "holder": self.holder}
        for name in sorted({*small, *self.files}, key=lambda name: tuple(name.split("/"))):
            if name in self.files:
                stream(archive, f"{PART}/{name}", self.files[name])
            elif small[name]:
                archive.add(f"{PART}/{name}", small[name])


def is_state_file(name: str) -> bool:
    """Returns whether a backup may have a file of this name in a trainer's state."""
    return _NAMES.fullmatch(name) is not None


def stream(archive: ArchiveWriter, name: str, file: IO[bytes]) -> None:
    """Adds an open file to a backup."""
    archive.stream(name, os.fstat(file.fileno()).st_size, iter(lambda: file.read(PIECE), b""))


@contextmanager
def open_copy(folder: Path) -> Iterator[TrainerCopy]:
    """Opens the files of a state directory that fit together.

    Raises:
        InvalidInput: The directory has no journal.
        Conflict: The journal or the state is damaged.
        Unavailable: The trainer replaced its state again and again meanwhile.
    """
    for _ in range(_TRIES):
        with ExitStack() as stack:
            copy = _opened(folder, stack)
            if copy is not None:
                yield copy
                return
    raise Unavailable(f"the state in {folder} changed {_TRIES} times while it was opened", hint="make the backup again")


def _opened(folder: Path, stack: ExitStack) -> TrainerCopy | None:
    """Returns the open files; None if the trainer replaced the saved state meanwhile."""
    files: dict[str, IO[bytes]] = {}
    step = 0
    state = _file(folder / STATE_FILE, stack)
    if state is not None:
        step = saved_step(state, name=str(folder / STATE_FILE))
        state.seek(0)
        files[STATE_FILE] = state
    lines, recorded = Journal(folder).copy()
    if not lines:
        raise InvalidInput(
            f"{folder} has no {JOURNAL_FILE} with content, so there is nothing to back up",
            hint="check `state` under [trainer]; a trainer writes the journal when it starts",
        )
    for number, batch in recorded.batches.items():
        if number < step:
            continue
        for entry in batch.files:
            for ending in (f"{entry.sha256[2:]}.parquet", f"{entry.audit[2:]}.json"):
                name = f"rollouts/{number}/{ending}"
                if name not in files:
                    file = _file(folder / name, stack)
                    if file is None:
                        _check_removed(folder / name, folder / STATE_FILE, state)
                        return None
                    files[name] = file
    if not _is_same(folder / STATE_FILE, state):
        return None
    return TrainerCopy(
        step=max([step, *(number + 1 for number in recorded.batches)]),
        journal=lines,
        progress=_whole_lines(folder / "progress.jsonl"),
        holder=_content(folder / "holder"),
        files=files,
    )


def _file(path: Path, stack: ExitStack) -> IO[bytes] | None:
    try:
        return stack.enter_context(path.open("rb"))
    except FileNotFoundError:
        return None


def _check_removed(path: Path, state: Path, opened: IO[bytes] | None) -> None:
    """Checks that a missing file was removed after a newer state was saved.

    Raises:
        InvalidInput: The state is unchanged, so the file is lost.
    """
    if _is_same(state, opened):
        raise InvalidInput(
            f"{path}, which the journal names, is missing: the run can't continue from this directory",
            hint="restore the trainer's state from an earlier backup",
        )


def _is_same(path: Path, opened: IO[bytes] | None) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return opened is None
    return opened is not None and os.path.samestat(os.fstat(opened.fileno()), now)


def _whole_lines(path: Path) -> bytes:
    data = _content(path)
    return data[: data.rfind(b"\n") + 1]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
