"""Publishes deltas against a version that readers may have.

A file's delta is always declared before the file itself. So when a file is declared, a reader that has the base knows
whether it needs that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from protocol.runtime.threads import run_in_thread
from shardcast.delta.building import BuiltDelta, build_delta
from shardcast.delta.errors import DeltaTooLarge
from shardcast.manifest.records import Whole
from shardcast.publish.publication import Publication

MOST_SHARE: Final = 0.5
"""Largest delta that is published, as a share of its file. A reader with the base takes each delta without comparing
it with the file, so the limit bounds the cost of a bad one."""


async def publish_deltas(
    publication: Publication, *, old: Path, new: Path, deltas: Path, sizes: Mapping[str, int]
) -> set[str]:
    """Publishes the delta of each file whose delta is small enough; returns the paths of these files.

    Args:
        publication: Publication of the version, opened with its base.
        old: The base's complete folder.
        new: The version's complete folder.
        deltas: Folder in which the publication expects deltas.
        sizes: The version's files, with their sizes.

    Raises:
        OSError: A delta can't be written.
    """
    done = set()
    for path, size in sizes.items():
        built = await run_in_thread(_build, old / path, new / path, deltas / path, int(size * MOST_SHARE))
        if built is not None:
            whole = Whole(size=size, sha256=built.sha256)
            await publication.advance(path, kind="delta", expected=built.size, whole=whole, ended=True)
            done.add(path)
    return done


def _build(old: Path, new: Path, delta: Path, limit: int) -> BuiltDelta | None:
    if not old.is_file():
        return None
    delta.parent.mkdir(parents=True, exist_ok=True)
    try:
        return build_delta(base=old, target=new, delta=delta, limit=limit)
    except DeltaTooLarge:
        return None
