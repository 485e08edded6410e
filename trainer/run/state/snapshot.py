"""Consistent snapshot of a state directory while the trainer works, for backups. Loads no torch.

The trainer appends a step to its journal before it learns from the step's files, and replaces the saved state as a
whole. It removes a step's files only after it has saved a state that includes the step. So state, journal and the
files of later steps fit together if the state is still the same file when all of them are open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from protocol.errors import InvalidInput, Unavailable
from trainer.run.state.folder import HOLDER_FILE, PROGRESS_FILE, STATE_FILE, saved_step
from trainer.run.state.journal import JOURNAL_FILE, Journal

_TRIES = 100
_NAMES = frozenset({JOURNAL_FILE, PROGRESS_FILE, HOLDER_FILE, STATE_FILE})
_ROLLOUT_FILE = re.compile(r"rollouts/\d+/[0-9a-f]{64}\.(parquet|json)")


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """A trainer's state, with its large files open.

    Args:
        step: The next step of the run when it continues from this snapshot.
        files: Contents of the journal's and the progress log's complete lines and of the trainer's identity; open files
            of the saved state, and of the rollout files of steps that it does not include. By name.
    """

    step: int
    files: Mapping[str, bytes | IO[bytes]]

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(
            len(one) if isinstance(one, bytes) else os.fstat(one.fileno()).st_size for one in self.files.values()
        )


def is_state_file(name: str) -> bool:
    """Returns whether a snapshot may have a file of this name."""
    return name in _NAMES or _ROLLOUT_FILE.fullmatch(name) is not None


@contextmanager
def open_snapshot(folder: Path) -> Iterator[StateSnapshot]:
    """Opens the files of a state directory that fit together.

    Raises:
        InvalidInput: The directory has no journal, or a file that the journal names is lost.
        Conflict: The journal or the state is damaged.
        Unavailable: The trainer replaced its state again and again meanwhile.
    """
    for _ in range(_TRIES):
        with ExitStack() as stack:
            found = _opened(folder, stack)
            if found is not None:
                yield found
                return
    raise Unavailable(f"the state in {folder} changed {_TRIES} times while it was opened", hint="make the backup again")


def _opened(folder: Path, stack: ExitStack) -> StateSnapshot | None:
    """Returns the snapshot; None if the trainer replaced the saved state meanwhile."""
    files: dict[str, bytes | IO[bytes]] = {}
    step = 0
    state = _file(folder / STATE_FILE, stack)
    if state is not None:
        step = saved_step(state, name=str(folder / STATE_FILE))
        state.seek(0)
        files[STATE_FILE] = state
    journal, recorded = Journal(folder).copy()
    if not journal:
        raise InvalidInput(
            f"{folder} has no {JOURNAL_FILE} with content, so there is nothing to back up",
            hint="check `state` under [trainer]; a trainer writes the journal when it starts",
        )
    entries = [(number, one) for number, batch in recorded.batches.items() if number >= step for one in batch.files]
    for number, entry in entries:
        for name in (f"rollouts/{number}/{entry.sha256[2:]}.parquet", f"rollouts/{number}/{entry.audit[2:]}.json"):
            if name in files:
                continue
            if (file := _file(folder / name, stack)) is not None:
                files[name] = file
            elif _is_same(folder / STATE_FILE, state):  # otherwise the trainer has removed the file
                raise InvalidInput(
                    f"{folder / name}, which the journal names, is missing: the run can't continue from this directory",
                    hint="restore the trainer's state from an earlier backup",
                )
            else:
                return None
    if not _is_same(folder / STATE_FILE, state):
        return None
    progress = _content(folder / PROGRESS_FILE)
    small = {
        JOURNAL_FILE: journal,
        PROGRESS_FILE: progress[: progress.rfind(b"\n") + 1],
        HOLDER_FILE: _content(folder / HOLDER_FILE),
    }
    files |= {name: content for name, content in small.items() if content}
    return StateSnapshot(max([step, *(number + 1 for number in recorded.batches)]), files)


def _file(path: Path, stack: ExitStack) -> IO[bytes] | None:
    try:
        return stack.enter_context(path.open("rb"))
    except FileNotFoundError:
        return None


def _is_same(path: Path, opened: IO[bytes] | None) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return opened is None
    return opened is not None and os.path.samestat(os.fstat(opened.fileno()), now)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
