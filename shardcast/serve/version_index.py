"""The versions that an origin or a relay has to give, newest first, and who wants to know when that changes."""

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
    """Listed version of a peer; unverified until its manifest is read."""

    version: int = Field(ge=0, le=MOST_VERSION)
    attempt: int = Field(ge=1, le=MOST_ATTEMPT)
    sealed: bool
    size: int = Field(ge=0)
    """Bytes that are announced so far."""
    digest: WireDigest | None = None
    base: int | None = Field(None, ge=0, le=MOST_VERSION)
    signer: WireAddress | None = None
    """Signer if it is not the listing's publisher: the former key."""

    @property
    def key(self) -> VersionKey:
        """The version and its attempt."""
        return VersionKey(self.version, self.attempt)


class Listing(WireModel):
    """Listing of a peer, newest first."""

    run: WireDigest
    publisher: WireAddress
    versions: tuple[ListedVersion, ...] = Field((), max_length=MOST_LISTED)

    def only(self, signers: Collection[Address]) -> Listing:
        """Returns the part of it that names one of these signers."""
        kept = tuple(each for each in self.versions if (each.signer or self.publisher) in signers)
        return self if kept == self.versions else self.model_copy(update={"versions": kept})


class VersionIndex:
    """Holdings by version, at most one attempt of each.

    Args:
        run: The run that all are of.
        publisher: Who signs them now; older ones may carry the name of the key before.
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
        self._holdings: dict[int, LocalVersion] = {}
        self._change = asyncio.Event()

    def __iter__(self) -> Iterator[LocalVersion]:
        """Newest first."""
        return iter(sorted(self._holdings.values(), key=lambda holding: holding.manifest.key, reverse=True))

    def __len__(self) -> int:
        return len(self._holdings)

    def get(self, version: int) -> LocalVersion | None:
        """The version in its newest attempt; None if it is not here."""
        return self._holdings.get(version)

    def find(self, key: VersionKey) -> LocalVersion:
        """One attempt at a version.

        Raises:
            VersionGone: It is not here.
        """
        holding = self._holdings.get(key.version)
        if holding is None or holding.manifest.key != key:
            raise VersionGone(f"version {key} is not here")
        return holding

    def put(self, holding: LocalVersion) -> LocalVersion | None:
        """Adds a version; returns the older attempt that it voids."""
        key = holding.manifest.key
        voided = self._holdings.get(key.version)
        if not self._holdings or key.version > max(self._holdings):
            self.newest_since = self._clock.now()
        self._holdings[key.version] = holding
        if voided is not None:
            voided.leave()
        self.changed()
        return voided

    def drop(self, holding: LocalVersion) -> None:
        """Takes a version away; those who wait for it are told."""
        if self._holdings.get(holding.manifest.key.version) is holding:
            del self._holdings[holding.manifest.key.version]
        holding.leave()
        self.changed()

    def ranked(self, signers: Collection[Address] | None = None) -> list[LocalVersion]:
        """Returns versions, newest first; those of other signers come last."""
        return sorted(self, key=lambda holding: signers is None or holding.manifest.signer in signers, reverse=True)

    def surplus(self, kept: Collection[LocalVersion]) -> list[LocalVersion]:
        """Returns removable versions: all but these and their bases."""
        newest = list(self)
        needed = {holding.manifest.key.version for holding in kept}
        for holding in newest:  # newest first, so a base's base is found too
            base = holding.manifest.base
            if holding.manifest.key.version in needed and base is not None and not stands_alone(holding.manifest):
                needed.add(base.version)
        return [holding for holding in newest if holding.manifest.key.version not in needed]

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
            for manifest in (holding.manifest for holding in self)
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
        for holding in self:
            holding.wake()

    async def next_change(self) -> None:
        """Returns when the listing is another than now."""
        await self._change.wait()
