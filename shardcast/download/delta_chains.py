"""Downloads a version as deltas, whole, or after its base, by the fewest bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from protocol.errors import Unavailable
from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Deadline
from shardcast.delta.errors import BaseNeeded, WrongBase
from shardcast.download.delta_bases import LONGEST_CHAIN, DeltaBases, DeltaChain
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.errors import VersionDropped, VersionGone
from shardcast.manifest.manifest import VersionKey

_log = structlog.get_logger(__name__)


class Made(Protocol):
    """Result of a download."""

    @property
    def path(self) -> Path:
        """The version's complete folder."""
        ...


M = TypeVar("M", bound=Made)

FetchOnce = Callable[[VersionKey, Digest | None, Path | None], Awaitable[M | None]]
"""Fetches a version: with the digest that it must have, if one is known, and with its base's folder, or whole. Gives
None if something newer takes its place, and raises `BaseNeeded` or `WrongBase` where it has to be done otherwise."""


class DeltaDownloader:
    """Decides how versions are fetched.

    Args:
        bases: Knows what lies here.
        directory: Knows what relays have.
        patience: How long relays may take to show a base.
        clock: Of deadlines.
    """

    def __init__(self, bases: DeltaBases, *, directory: PeerCatalog, patience: timedelta, clock: Clock) -> None:
        self._bases = bases
        self._directory = directory
        self._patience = patience
        self._clock = clock

    async def fetch(
        self,
        key: VersionKey,
        to: Path,
        *,
        wanted: FetchOnce[M],
        between: FetchOnce[M],
        expected: Digest | None = None,
        depth: int = 0,
    ) -> M | None:
        """Returns the version, however it came; None if something newer takes its place.

        What changed since a version that lies here is enough, if that is fewer bytes; if it turns out that the version
        travels in no other way, its base is fetched first.

        Args:
            key: The version.
            to: The folder that versions stand in.
            wanted: Fetches it.
            between: Fetches versions on the way to it.
            expected: The digest that it must have.
            depth: How many versions wait for this one.

        Raises:
            VersionGone: It, or what it is built on, is held by no relay.
            VersionDropped: It can't be made from what its publisher signed, or is built on too many others.
        """
        chain = await self._bases.chain(key, to)
        base = None if chain is None else await self._walk(chain, between)
        for _ in range(3):  # with what lies here; whole; with a base that was fetched or mended for it
            try:
                return await wanted(key, expected, base)
            except WrongBase as error:
                _log.warning("wrong-base", version=str(key), why=error.detail)
                base = None
            except BaseNeeded:
                base = await self._fetch_base(key, to, between, depth)
        raise VersionDropped(f"version {key} can't be made from its base, which is as its publisher signed it")

    async def _walk(self, chain: DeltaChain, between: FetchOnce[M]) -> Path | None:
        """Makes the versions of a chain; the last one's folder, or None if that does not work out."""
        folder = chain.start
        for link in chain.links:
            key = VersionKey(link.version, link.attempt)
            try:
                made = await between(key, link.digest, folder)
            except (WrongBase, VersionGone, VersionDropped) as error:
                _log.info("chain-broken", version=str(key), why=error.detail)
                return None
            if made is None:
                return None
            folder = made.path
        return folder

    async def _fetch_base(self, key: VersionKey, to: Path, between: FetchOnce[M], depth: int) -> Path:
        base = self._directory.base_of(key)
        if base is None or depth == LONGEST_CHAIN:
            raise VersionDropped(f"version {key} is built on more than {LONGEST_CHAIN} others, none of which is whole")
        wanted = VersionKey(base.version, base.attempt)
        gone = VersionGone(f"version {wanted}, on which {key} is built, is held by no relay")
        deadline = Deadline.after(self._patience, clock=self._clock)
        while True:
            seen = self._directory.revision
            if await self._directory.newest(version=base.version) == wanted:
                break
            try:  # a relay that is new itself fetches what is newest first, and then its base
                await deadline.bound(self._directory.next_change(seen), what="the wait for a base")
            except Unavailable:
                raise gone from None
        made = await self.fetch(wanted, to, wanted=between, between=between, expected=base.digest, depth=depth + 1)
        if made is None:
            raise gone
        return made.path
