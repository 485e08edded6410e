"""Atomic, durable writes of files and folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from trainer.errors import NotWritten

_READABLE = 0o644
"""Versions are published, but safetensors creates files that only their owner can read."""


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Writes a file atomically and durably; after a failure the previous file is intact.

    Args:
        path: Of the file.
        content: Its bytes, or an iterable of pieces, which is consumed while writing.

    Raises:
        NotWritten: The disk is full or refuses.
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
    """Syncs the directory entries of a folder and of its parents up to `within`.

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
    """Yields a temporary folder that is renamed to `folder` when the block succeeds.

    Raises:
        NotWritten: The disk is full or refuses.
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
    """Renames a complete folder to its final name.

    Raises:
        NotWritten: The disk refuses.
    """
    with _told(folder):
        made.replace(folder)
        _sync(folder.parent)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Converts I/O errors into `NotWritten` with path and reason."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{path} can't be written: {error.strerror or error}") from error
    except SafetensorError as error:  # safetensors wraps the OS error
        raise NotWritten(f"{path} can't be written: {error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
