"""The trainer's state directory: names of its files, its lock, and the step of the saved state. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from protocol.errors import Conflict
from protocol.runtime.files import FileLocked, locked_file
from trainer.errors import AnotherTrainer, NotWritten

STATE_FILE = "state.safetensors"
PROGRESS_FILE = "progress.jsonl"
HOLDER_FILE = "holder"
"""File with the id by which the orchestrator recognises a trainer that has restarted."""
RESTORING_FILE = "restoring"
"""File that exists while a backup is restored, and after a restore that was interrupted."""
_LOCK_FILE = "trainer.lock"
_LONGEST_HEADER = 100_000_000
"""Maximum size of the header of a safetensors file, in bytes; the library has the same limit."""


@contextmanager
def lock_state(folder: Path, *, restoring: bool = False) -> Iterator[None]:
    """Creates a state directory if needed and locks it until the block or the process ends.

    Args:
        folder: The state directory.
        restoring: Whether the caller restores the directory, which may be incomplete then.

    Raises:
        AnotherTrainer: Another process uses the directory.
        Conflict: A backup was not restored completely into the directory.
        NotWritten: The directory or its lock file can't be created.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(locked_file(folder / _LOCK_FILE))
        except FileLocked as error:
            raise AnotherTrainer(
                f"another trainer uses {folder}", hint="stop the other trainer, or give this one a --state of its own"
            ) from error
        except OSError as error:
            raise NotWritten(f"{folder} can't be used: {error.strerror or error}") from error
        if not restoring and (folder / RESTORING_FILE).exists():
            raise Conflict(
                f"{folder} is not restored completely",
                hint="run `muster admin restore` again",
                code="restore-unfinished",
            )
        yield


def saved_step(file: IO[bytes], *, name: str) -> int:
    """Returns the step of an open saved state, from the header of the file.

    Raises:
        Conflict: The file is not a trainer's state.
    """
    try:
        length = min(int.from_bytes(file.read(8), "little"), _LONGEST_HEADER)
        return int(json.loads(json.loads(file.read(length))["__metadata__"]["muster"])["step"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Conflict(f"{name} is not a trainer's state: {error}") from error
