"""Locks a state directory for one trainer."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.errors import AnotherTrainer, NotWritten

_LOCK_FILE = "trainer.lock"


@contextmanager
def hold_state(folder: Path) -> Iterator[None]:
    """Creates a state directory if needed and locks it until the block or the process ends.

    Raises:
        AnotherTrainer: Another process uses it.
        NotWritten: It can't be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / _LOCK_FILE).open("a")
    except OSError as error:
        raise NotWritten(f"{folder} can't be used: {error.strerror or error}") from error
    with lock:
        os.set_inheritable(lock.fileno(), False)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AnotherTrainer(
                f"a trainer works in {folder}", hint="stop it first, or give this one a --state of its own"
            ) from error
        yield
