"""Choice between whole files and a chain of deltas from a local version, by bytes to transfer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardcast.delta.selection import bytes_with_base
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.errors import BadManifest
from shardcast.local_version import MANIFEST_NAME
from shardcast.manifest.manifest import Manifest, VersionKey
from shardcast.manifest.records import DeltaBase

LONGEST_CHAIN: Final = 16
"""Versions between a whole one and the one that is wanted. A longer chain is not followed: anchors come more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaChain:
    """A way from a folder on this disk to a version."""

    start: Path
    """The complete folder that it begins with."""
    links: tuple[DeltaBase, ...]
    """Versions to be made on the way, oldest first; the last is the base of the wanted one. None if `start` is it."""


class DeltaBases:
    """Looks for versions on this disk that others are built on.

    Args:
        directory: Knows what relays have, and whose versions count.
    """

    def __init__(self, directory: PeerCatalog) -> None:
        self._directory = directory

    async def chain(self, key: VersionKey, to: Path) -> DeltaChain | None:
        """The way to a version from what lies here; None if it is fetched whole.

        It is taken when the deltas between are fewer bytes than the version that it begins with, which is as large as
        the wanted one would be: a model does not change its shape.

        Args:
            key: The wanted version.
            to: The folder that versions stand in.
        """
        links: list[DeltaBase] = []
        cost = 0
        at = self._directory.base_of(key)
        while at is not None and len(links) < LONGEST_CHAIN:
            found = await asyncio.to_thread(self._lying_here, to, at)
            if found is not None:
                whole = sum(file.size for file in found.content())
                start = to / str(at.version)
                return DeltaChain(start=start, links=tuple(reversed(links))) if cost < whole or not links else None
            between = await self._directory.sealed(VersionKey(at.version, at.attempt))
            if between is None or between.digest != at.digest:
                return None
            links.append(at)
            cost += bytes_with_base(between)
            at = between.base
        return None

    def _lying_here(self, to: Path, base: DeltaBase) -> Manifest | None:
        """The manifest of a complete folder that claims to be this version. Its files show their faults when used."""
        key = VersionKey(base.version, base.attempt)
        manifest = self._directory.manifest(key)
        try:
            with (to / str(base.version) / MANIFEST_NAME).open("rb") as file:
                for line in file:
                    manifest.read(line)
        except (OSError, BadManifest):
            return None
        return manifest if manifest.digest == base.digest else None
