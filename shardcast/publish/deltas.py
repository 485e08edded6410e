"""The publisher's side of delta versions: what changed since a version that receivers have.

A file's delta is always declared before the file itself, so a reader that has the base knows at each declaration
whether it needs what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shardcast.delta.building import BuiltDelta, build_delta
from shardcast.delta.errors import DeltaTooLarge
from shardcast.manifest.records import Whole
from shardcast.publish.publication import Publication

MOST_SHARE: Final = 0.5
"""A delta of more than this share of its file is not published: a reader with the base takes a delta without asking
what the file would cost, and is never much worse off."""


async def publish_deltas(
    publication: Publication, *, old: Path, new: Path, deltas: Path, sizes: Mapping[str, int]
) -> set[str]:
    """Publishes the delta of every file that has one worth its bytes; returns their paths.

    Args:
        publication: Of the version, opened with its base.
        old: The base's complete folder.
        new: The version's complete folder.
        deltas: Where the publication looks for deltas.
        sizes: The version's files, with their sizes.

    Raises:
        DiskFull: There is no room for a delta.
    """
    done = set()
    for path, size in sizes.items():
        built = await asyncio.to_thread(_built, old / path, new / path, deltas / path, int(size * MOST_SHARE))
        if built is not None:
            whole = Whole(size=size, sha256=built.sha256)
            await publication.advance(path, kind="delta", expected=built.size, whole=whole, ended=True)
            done.add(path)
    return done


def _built(old: Path, new: Path, delta: Path, limit: int) -> BuiltDelta | None:
    if not old.is_file():
        return None
    delta.parent.mkdir(parents=True, exist_ok=True)
    try:
        return build_delta(base=old, target=new, delta=delta, limit=limit)
    except DeltaTooLarge:
        return None
