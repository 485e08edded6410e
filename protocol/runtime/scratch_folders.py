"""Temporary folders that do not stay behind for ever if their process is killed.

A process that ends by SIGKILL can't remove its temporary folder. So each folder is locked while its process lives, and
a later process of the same user removes the folders that nobody locks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protocol.runtime.files import try_lock


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Yields a new, empty folder in the system's folder for temporary files, and removes it at the end.

    First it removes folders of killed processes; see `remove_abandoned`.

    Args:
        prefix: Beginning of the folder's name. It must belong to one purpose, such as `muster-reference-`.
    """
    remove_abandoned(prefix)
    folder, descriptor = _locked(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(prefix: str) -> int:
    """Removes folders that `scratch_folder` made for processes of this user which have ended.

    Returns how many folders it removed. Folders of running processes and of other users stay.
    """
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError), _opened(folder) as descriptor:
            if os.fstat(descriptor).st_uid == os.geteuid() and try_lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
                removed += not folder.exists()
    return removed


def _locked(prefix: str) -> tuple[Path, int]:
    """Returns a new folder and the descriptor that holds its lock.

    Another process may find the folder before it is locked, and remove it. Then this function makes another one.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):
            descriptor = _open(folder)
            if try_lock(descriptor) and folder.exists():
                return folder, descriptor
            os.close(descriptor)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = _open(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
