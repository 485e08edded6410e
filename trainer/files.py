"""Files and folders that are there whole or not at all, whatever moment the power fails at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from trainer.errors import NotWritten

_READABLE = 0o644
"""A version is there to be published; safetensors makes files that only their owner can read."""


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Writes a file: afterwards it is on the disk, and after a failure the one that was there before still is.

    Args:
        path: Of the file.
        content: Its bytes, or its pieces in order, each of which is asked for when the one before it is written.

    Raises:
        NotWritten: The disk is full, or refuses.
    """
    partial = path.with_name(f".{path.name}.part")
    with _told(path):
        try:
            with partial.open("wb") as file:
                for piece in [content] if isinstance(content, bytes) else content:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def sync_names(folder: Path, *, within: Path) -> None:
    """Has the names of a folder's files on the disk, and its own up to a folder that is there for sure.

    Raises:
        NotWritten: The disk refuses.
    """
    with _told(folder):
        if not folder.exists():
            return
        while True:
            _sync(folder)
            if folder in {within, folder.parent}:
                return
            folder = folder.parent


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Gives a folder to write into, which becomes `folder` when the block ends without an error.

    Raises:
        NotWritten: The disk is full, or refuses.
    """
    partial = folder.with_name(f".{folder.name}.part")
    with _told(folder):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            yield partial
            for path in [*partial.rglob("*"), partial]:
                if path.is_file():
                    path.chmod(_READABLE)
                _sync(path)
            partial.replace(folder)
            _sync(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def put_in_place(made: Path, folder: Path) -> None:
    """Gives a folder that is whole its name.

    Raises:
        NotWritten: The disk refuses.
    """
    with _told(folder):
        made.replace(folder)
        _sync(folder.parent)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Says which file a disk refused, and why."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{path} can't be written: {error.strerror or error}") from error
    except SafetensorError as error:  # its writer wraps what the system said
        raise NotWritten(f"{path} can't be written: {error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
