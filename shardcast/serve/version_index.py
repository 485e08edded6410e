"""Index of the versions that an origin or a relay serves, newest first, with notification of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from datetime import datetime

from pydantic import Field

from protocol.identifiers import Address, Digest, WireAddress, WireDigest
from protocol.runtime.clock import Clock, SystemClock
from protocol.wire.base import WireModel
from shardcast.delta.selection import stands_alone
from shardcast.errors import VersionGone
from shardcast.local_version import LocalVersion
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.records import MOST_ATTEMPT, MOST_VERSION

MOST_LISTED = 64


class ListedVersion(WireModel):
    """Entry of a listing; unverified until the version's manifest is read."""

    version: int = Field(ge=0, le=MOST_VERSION)
    attempt: int = Field(ge=1, le=MOST_ATTEMPT)
    sealed: bool
    size: int = Field(ge=0)
    """Bytes announced so far."""
    digest: WireDigest | None = None
    base: int | None = Field(None, ge=0, le=MOST_VERSION)
    signer: WireAddress | None = None
    """Signer if it differs from the listing's publisher: the publisher's former key."""

    @property
    def key(self) -> VersionKey:
        """Returns the version and its attempt."""
        return VersionKey(self.version, self.attempt)


class Listing(WireModel):
    """Versions of a peer, newest first."""

    run: WireDigest
    publisher: WireAddress
    versions: tuple[ListedVersion, ...] = Field((), max_length=MOST_LISTED)

    def only(self, signers: Collection[Address]) -> Listing:
        """Returns the listing without versions of other signers."""
        kept = tuple(each for each in self.versions if (each.signer or self.publisher) in signers)
        return self if kept == self.versions else self.model_copy(update={"versions": kept})


class VersionIndex:
    """Local versions by number, with at most one attempt at each.

    Args:
        run: Id of the run.
        publisher: The present publisher; its former key may have signed older versions.
        clock: The system's by default.
    """

    def __init__(self, *, run: Digest, publisher: Address, clock: Clock | None = None) -> None:
        self.run = run
        self.publisher = publisher
        self.revision = 0
        """Grows with each change of the listing."""
        self.newest_since: datetime | None = None
        """Time at which the newest version was first seen."""
        self._clock = SystemClock() if clock is None else clock
        self._versions: dict[int, LocalVersion] = {}
        self._change = asyncio.Event()

    def __iter__(self) -> Iterator[LocalVersion]:
        """Iterates over the versions, newest first."""
        return iter(sorted(self._versions.values(), key=lambda local: local.manifest.key, reverse=True))

    def __len__(self) -> int:
        return len(self._versions)

    def get(self, version: int) -> LocalVersion | None:
        """Returns the newest attempt at a version; None if the index lacks the version."""
        return self._versions.get(version)

    def find(self, key: VersionKey) -> LocalVersion:
        """Returns one attempt at a version.

        Raises:
            VersionGone: The index lacks it.
        """
        local = self._versions.get(key.version)
        if local is None or local.manifest.key != key:
            raise VersionGone(f"version {key} is not held here")
        return local

    def put(self, local: LocalVersion) -> LocalVersion | None:
        """Adds a version; returns the older attempt that it voids."""
        key = local.manifest.key
        voided = self._versions.get(key.version)
        if not self._versions or key.version > max(self._versions):
            self.newest_since = self._clock.now()
        self._versions[key.version] = local
        if voided is not None:
            voided.close()
        self.changed()
        return voided

    def remove(self, local: LocalVersion) -> None:
        """Removes a version and wakes its waiting readers."""
        if self._versions.get(local.manifest.key.version) is local:
            del self._versions[local.manifest.key.version]
        local.close()
        self.changed()

    def ranked(self, signers: Collection[Address] | None = None) -> list[LocalVersion]:
        """Returns versions, newest first; those of other signers come last."""
        return sorted(self, key=lambda local: signers is None or local.manifest.signer in signers, reverse=True)

    def surplus(self, kept: Collection[LocalVersion]) -> list[LocalVersion]:
        """Returns removable versions: all but these and their bases."""
        newest = list(self)
        needed = {local.manifest.key.version for local in kept}
        for local in newest:  # newest first, so a base's base is found too
            base = local.manifest.base
            if local.manifest.key.version in needed and base is not None and not stands_alone(local.manifest):
                needed.add(base.version)
        return [local for local in newest if local.manifest.key.version not in needed]

    def listing(self) -> Listing:
        """Returns the present listing, without versions that have no data yet."""
        listed = [
            ListedVersion(
                version=manifest.key.version,
                attempt=manifest.key.attempt,
                sealed=manifest.sealed,
                size=manifest.size,
                digest=manifest.digest,
                base=None if manifest.base is None else manifest.base.version,
                signer=None if manifest.signer == self.publisher else manifest.signer,
            )
            for manifest in (local.manifest for local in self)
            if manifest.length
        ]
        return Listing(run=self.run, publisher=self.publisher, versions=tuple(listed[:MOST_LISTED]))

    def changed(self) -> None:
        """Notifies readers that a version was added, removed or sealed."""
        self.revision += 1
        self._change.set()
        self._change = asyncio.Event()

    def wake(self) -> None:
        """Wakes all waiting readers."""
        self._change.set()
        self._change = asyncio.Event()
        for local in self:
            local.wake()

    async def next_change(self) -> None:
        """Returns at the next change of the listing."""
        await self._change.wait()
