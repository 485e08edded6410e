"""Chooses the files of a version to transfer, with and without its base."""

from __future__ import annotations

from collections.abc import Callable

from shardcast.manifest.manifest import FileProgress, Manifest

Wanted = Callable[[FileProgress], bool]


def wanted_alone(file: FileProgress) -> bool:
    """Returns whether a reader without the base needs a file: whole files only."""
    return file.kind == "full"


def wanted_with_base(manifest: Manifest) -> Wanted:
    """Returns the choice of a reader with the base: every delta, and the whole files that have none.

    Works while the manifest grows, because a delta is declared before its file.
    """
    deltas: set[str] = set()
    looked = 0

    def wanted(file: FileProgress) -> bool:
        nonlocal looked
        for each in manifest.files[looked:]:
            if each.kind == "delta":
                deltas.add(each.path)
        looked = len(manifest.files)
        return file.kind == "delta" or file.path not in deltas

    return wanted


def stands_alone(manifest: Manifest) -> bool:
    """Returns whether a sealed version needs no base: each of its files is available whole."""
    if manifest.base is None:
        return True
    whole = {file.path for file in manifest.files if file.kind == "full"}
    return manifest.sealed and all(file.path in whole for file in manifest.files)


def bytes_with_base(manifest: Manifest) -> int:
    """Returns the bytes to transfer for a reader that has the base."""
    wanted = wanted_with_base(manifest)
    return sum(file.announced for file in manifest.files if wanted(file))
