"""Publishes deltas against an earlier version, the base, for readers that have the base.

The manifest always declares the delta of a file before the whole file. So when a reader with the base sees the
declaration of a whole file, the reader knows whether it needs the file.
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
"""Largest size of a published delta, as a share of the file's size. Readers with the base always fetch the delta
instead of the file. So a larger delta would save these readers little, and cost them the time to apply the delta."""


async def publish_deltas(
    publication: Publication, *, old: Path, new: Path, deltas: Path, sizes: Mapping[str, int]
) -> set[str]:
    """Publishes a delta for each file whose delta is small enough.

    Returns the paths of these files.

    Args:
        publication: Publication of the version, started by `Origin.begin` with the same base.
        old: Folder with the complete base.
        new: Folder with the complete version.
        deltas: Folder for the deltas, in which the publication expects them.
        sizes: Files of the version by path, with their sizes in bytes.

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
