"""Saves disk space: replaces relays' copies of versions by hard links to the trainer's.

A relay holds each version that the trainer holds, byte for byte. Once a relay's copy of a file is complete,
`share_versions` replaces the copy by a hard link. Sharing is safe, because trainer and relay write only bytes that the
trainer published. Workers' copies stay separate, because the workers' tasks are not trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cli.devnet.directory import DevnetDirectory

_SMALLEST = 1 << 20
"""Size in bytes below which a file is not worth a link."""
_PIECE = 1 << 20
_LINK_NAME = ".shared"


def share_versions(directory: DevnetDirectory) -> int:
    """Replaces complete copies by hard links; returns the number of freed bytes.

    Skips files that disappear during the call or are still incomplete; the next call tries them again.
    """
    freed = 0
    for copy, original in _pairs(directory):
        with suppress(OSError):
            freed += _share(copy, original)
    return freed


def _pairs(directory: DevnetDirectory) -> Iterator[tuple[Path, Path]]:
    """Yields the relays' files with the trainer's files of the same version."""
    for copy in directory.relays.glob("*/*.*/files/*"):
        version = copy.parents[1].name.partition(".")[0]
        yield copy, directory.policies / version / copy.name


def _share(copy: Path, original: Path) -> int:
    kept, copied = original.stat(), copy.stat()
    if copied.st_size < _SMALLEST or (kept.st_size, kept.st_dev) != (copied.st_size, copied.st_dev):
        return 0
    if kept.st_ino == copied.st_ino or not _equal(copy, original):
        return 0
    folder = copy.parent
    link, times = folder / _LINK_NAME, folder.stat()
    link.unlink(missing_ok=True)
    os.link(original, link)
    link.replace(copy)
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    return copied.st_blocks * 512 if copied.st_nlink == 1 else 0


def _equal(copy: Path, original: Path) -> bool:
    with copy.open("rb", buffering=0) as one, original.open("rb", buffering=0) as other:
        while piece := one.read(_PIECE):
            if piece != other.read(_PIECE):
                return False
        return not other.read(1)
