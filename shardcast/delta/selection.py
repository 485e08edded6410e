"""Chooses the files of a version that a reader transfers, with or without the base."""

from __future__ import annotations

from collections.abc import Callable

from shardcast.manifest.manifest import FileProgress, Manifest

Wanted = Callable[[FileProgress], bool]
"""Function that returns whether a reader transfers a file."""


def wanted_alone(file: FileProgress) -> bool:
    """Returns whether a reader without the base transfers a file: true for whole files only."""
    return file.kind == "full"


def wanted_with_base(manifest: Manifest) -> Wanted:
    """Returns a function that selects the files that a reader with the base transfers.

    The reader transfers every delta, and the whole files that have no delta. The function also works while the manifest
    grows, because the manifest declares a file's delta before the whole file.
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
    """Returns whether a reader can get all files of a version without its base.

    Returns False for an unsealed version with a base, because further files may follow that exist as deltas only.
    """
    if manifest.base is None:
        return True
    whole = {file.path for file in manifest.files if file.kind == "full"}
    return manifest.sealed and all(file.path in whole for file in manifest.files)


def bytes_with_base(manifest: Manifest) -> int:
    """Returns the number of bytes that a reader with the base transfers."""
    wanted = wanted_with_base(manifest)
    return sum(file.announced for file in manifest.files if wanted(file))
