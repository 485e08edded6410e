"""Chooses between whole files and a chain of deltas, by the number of bytes to transfer."""

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
"""Maximum number of versions that a reader rebuilds, or downloads as bases, before the wanted version. Publishers
should publish whole versions more often than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaChain:
    """Chain of deltas from a complete local version to the base of the wanted version."""

    start: Path
    """Folder with the complete local version, to which the first delta is applied."""
    links: tuple[DeltaBase, ...]
    """Versions to rebuild one after another, oldest first; the last one is the base of the wanted version.

    Empty if the folder `start` already holds that base.
    """


async def find_chain(catalog: PeerCatalog, key: VersionKey, to: Path) -> DeltaChain | None:
    """Returns the chain of deltas from a local version to the wanted one.

    Returns None if no chain exists, or if the wanted version's whole files are smaller than the chain's deltas.

    The size of the whole files is estimated: it is the size of the local version at the start of the chain, because
    versions of one model have the same size. A local version that already is the wanted version's base is always used.

    Args:
        catalog: Catalog of the versions that peers have.
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
    """Returns the manifest in the local folder of a base.

    Returns None if the folder does not hold the complete base.

    The function does not read the files: if a file is wrong, the file that is rebuilt from it has a wrong SHA-256.
    """
    manifest = catalog.manifest(VersionKey(base.version, base.attempt))
    try:
        with (to / str(base.version) / MANIFEST_NAME).open("rb") as file:
            for line in file:
                manifest.read(line)
    except (OSError, BadManifest):
        return None
    return manifest if manifest.digest == base.digest else None
