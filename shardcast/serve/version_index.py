"""Index of the versions that an origin or a relay serves; tasks can wait for its changes."""

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
"""Maximum number of versions in a listing."""


class ListedVersion(WireModel):
    """Entry of a peer's listing, unsigned.

    Only the version's manifest proves that the publisher made the version.
    """

    version: int = Field(ge=0, le=MOST_VERSION)
    attempt: int = Field(ge=1, le=MOST_ATTEMPT)
    sealed: bool
    size: int = Field(ge=0)
    """Number of bytes that the manifest announces so far."""
    digest: WireDigest | None = None
    """Version digest; None until the version is sealed."""
    base: int | None = Field(None, ge=0, le=MOST_VERSION)
    """Number of the version that the deltas are applied to; None without deltas."""
    signer: WireAddress | None = None
    """Address of the publisher's former key, if that key signed the version; None if the present key did."""

    @property
    def key(self) -> VersionKey:
        """Returns the number of the version and of the attempt at it."""
        return VersionKey(self.version, self.attempt)


class Listing(WireModel):
    """Unsigned list of the versions that a peer holds, newest first."""

    run: WireDigest
    publisher: WireAddress
    versions: tuple[ListedVersion, ...] = Field((), max_length=MOST_LISTED)

    def only(self, signers: Collection[Address]) -> Listing:
        """Returns the listing with only the versions that these signers signed."""
        kept = tuple(each for each in self.versions if (each.signer or self.publisher) in signers)
        return self if kept == self.versions else self.model_copy(update={"versions": kept})


class VersionIndex:
    """Local versions by number, with at most one attempt at each version.

    Args:
        run: Id of the run.
        publisher: Address of the publisher's present key; the former key may have signed older versions.
        clock: Clock; the system clock by default.
    """

    def __init__(self, *, run: Digest, publisher: Address, clock: Clock | None = None) -> None:
        self.run = run
        self.publisher = publisher
        self.revision = 0
        """Number of changes of the listing so far."""
        self.newest_since: datetime | None = None
        """Time at which the newest version was added; None without a version."""
        self._clock = SystemClock() if clock is None else clock
        self._versions: dict[int, LocalVersion] = {}
        self._change = asyncio.Event()

    def __iter__(self) -> Iterator[LocalVersion]:
        """Iterates over the versions, newest first."""
        return iter(sorted(self._versions.values(), key=lambda local: local.manifest.key, reverse=True))

    def __len__(self) -> int:
        return len(self._versions)

    def get(self, version: int) -> LocalVersion | None:
        """Returns the local attempt at a version; None if the index has no such version."""
        return self._versions.get(version)

    def find(self, key: VersionKey) -> LocalVersion:
        """Returns one attempt at a version.

        Raises:
            VersionGone: The index does not have this attempt.
        """
        local = self._versions.get(key.version)
        if local is None or local.manifest.key != key:
            raise VersionGone(f"this server does not hold version {key}")
        return local

    def put(self, local: LocalVersion) -> LocalVersion | None:
        """Adds a version; returns the older attempt that the version replaces, if there was one."""
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
        """Removes a version, and wakes the tasks that wait for its data."""
        if self._versions.get(local.manifest.key.version) is local:
            del self._versions[local.manifest.key.version]
        local.close()
        self.changed()

    def ranked(self, signers: Collection[Address] | None = None) -> list[LocalVersion]:
        """Returns all versions, newest first.

        Args:
            signers: Accepted signers; versions of any other signer come after all accepted ones. None accepts all.
        """
        return sorted(self, key=lambda local: signers is None or local.manifest.signer in signers, reverse=True)

    def surplus(self, kept: Collection[LocalVersion]) -> list[LocalVersion]:
        """Returns the versions that may be removed: all versions except those to keep and the bases that they need."""
        newest = list(self)
        needed = {local.manifest.key.version for local in kept}
        for local in newest:  # a base is older than its version, so this order also finds the base of a base
            base = local.manifest.base
            if local.manifest.key.version in needed and base is not None and not stands_alone(local.manifest):
                needed.add(base.version)
        return [local for local in newest if local.manifest.key.version not in needed]

    def listing(self) -> Listing:
        """Returns the present listing, without versions whose manifest is still empty."""
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
        """Notifies waiting tasks that a version was added, removed or sealed."""
        self.revision += 1
        self._change.set()
        self._change = asyncio.Event()

    def wake(self) -> None:
        """Wakes all tasks that wait for the listing or a manifest, for example when the server stops."""
        self._change.set()
        self._change = asyncio.Event()
        for local in self:
            local.wake()

    async def next_change(self) -> None:
        """Waits for the next change of the listing."""
        await self._change.wait()
