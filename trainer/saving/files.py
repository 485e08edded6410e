"""Atomic and durable writing of files and folders: complete or absent after a power failure."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from protocol.checkpoints import folder_files
from protocol.runtime.files import sync_path, write_atomically
from trainer.errors import NotWritten

_READABLE = 0o644
"""Mode of published files; safetensors creates files that only their owner can read."""


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Writes a file atomically and durably; after a failure the previous file is unchanged.

    Args:
        path: Path of the file.
        content: Its bytes, or an iterable of pieces, which is consumed as the pieces are written.

    Raises:
        NotWritten: The disk is full or refuses the write.
    """
    with _write_errors(path):
        write_atomically(path, content)


def sync_names(folder: Path, *, within: Path) -> None:
    """Syncs the directory entries of a folder and its parents up to `within`, which is known to be durable.

    Raises:
        NotWritten: The disk refuses the write.
    """
    with _write_errors(folder):
        if not folder.exists():
            return
        while True:
            sync_path(folder)
            if folder in {within, folder.parent}:
                return
            folder = folder.parent


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `folder` when the block ends without an error.

    Raises:
        NotWritten: The disk is full or refuses the write.
    """
    partial = folder.with_name(f".{folder.name}.part")
    with _write_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            yield partial
            for path in [*partial.rglob("*"), partial]:
                if path.is_file():
                    path.chmod(_READABLE)
                sync_path(path)
            partial.replace(folder)
            sync_path(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def copy_version(source: Path, folder: Path) -> None:
    """Copies the files of a version atomically; other files in `source` are left out.

    Raises:
        NotWritten: The disk is full or refuses the write.
    """
    with whole_folder(folder) as partial:
        for file in folder_files(source):
            target = partial / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file.path, target)


def put_in_place(made: Path, folder: Path) -> None:
    """Renames a complete folder to its final name, durably.

    Raises:
        NotWritten: The disk refuses the write.
    """
    with _write_errors(folder):
        made.replace(folder)
        sync_path(folder.parent)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Converts write errors to `NotWritten` with path and reason."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{path} can't be written: {error.strerror or error}") from error
    except SafetensorError as error:  # safetensors wraps the system's error
        raise NotWritten(f"{path} can't be written: {error}") from error
