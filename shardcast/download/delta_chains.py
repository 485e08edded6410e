"""Choice between whole files and a chain of deltas from a local version, by bytes to transfer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.runtime.threads import run_in_thread
from shardcast.delta.selection import bytes_with_base
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.errors import BadManifest
from shardcast.local_version import MANIFEST_NAME
from shardcast.manifest.manifest import Manifest, VersionKey
from shardcast.manifest.records import DeltaBase

LONGEST_CHAIN: Final = 16
"""Most versions between a whole one and the wanted one. Publishers write whole versions more often than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaChain:
    """Chain of deltas from a complete local folder to a version."""

    start: Path
    """The complete folder that the first delta applies to."""
    links: tuple[DeltaBase, ...]
    """Versions to rebuild on the way, oldest first; the last is the wanted version's base.

    Empty if `start` is already that base.
    """


async def find_chain(catalog: PeerCatalog, key: VersionKey, to: Path) -> DeltaChain | None:
    """Returns the chain of deltas to a version; None if fetching the version whole is cheaper, or the only way.

    A chain is cheaper when its deltas are fewer bytes than the version that it starts with: versions of one model have
    the same size, so the wanted one would be as large.

    Args:
        catalog: Versions that peers have.
        key: The wanted version.
        to: The folder of local versions.
    """
    links: list[DeltaBase] = []
    cost = 0
    base = catalog.base_of(key)
    while base is not None and len(links) < LONGEST_CHAIN:
        found = await run_in_thread(_local_manifest, catalog, to, base)
        if found is not None:
            start_bytes = sum(file.size for file in found.content())
            if links and cost >= start_bytes:
                return None
            return DeltaChain(start=to / str(base.version), links=tuple(reversed(links)))
        manifest = await catalog.sealed(VersionKey(base.version, base.attempt))
        if manifest is None or manifest.digest != base.digest:
            return None
        links.append(base)
        cost += bytes_with_base(manifest)
        base = manifest.base
    return None


def _local_manifest(catalog: PeerCatalog, to: Path, base: DeltaBase) -> Manifest | None:
    """Returns the manifest in a complete folder if it is this version's.

    The files are not read here: a wrong one is found when a delta is applied to it.
    """
    manifest = catalog.manifest(VersionKey(base.version, base.attempt))
    try:
        with (to / str(base.version) / MANIFEST_NAME).open("rb") as file:
            for line in file:
                manifest.read(line)
    except (OSError, BadManifest):
        return None
    return manifest if manifest.digest == base.digest else None
