"""Reads a version's manifest as it grows, from one peer after another, until it is sealed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog

from protocol.runtime.clock import Clock
from shardcast.download.connection import Failed
from shardcast.download.peer_client import PeerClient
from shardcast.download.peer_selection import PeerSelection
from shardcast.download.peers import Fault
from shardcast.errors import BadManifest
from shardcast.local_version import LocalVersion
from shardcast.manifest.manifest import BlockSpan

FOLLOWERS = 2
"""Number of peers that are followed at a time, so that one that withholds a growing manifest delays nothing."""

MOST_FOLLOWERS = 8
"""While a manifest is not sealed, one more peer is heard each time that an answer's patience has passed: so a client
that drew slow or unwilling ones first does not depend on them."""

_log = structlog.get_logger(__name__)


class ManifestStream:
    """Follows one version's manifest as it grows.

    Args:
        holding: Local version that verifies and stores the manifest.
        givers: Peers to ask.
        upstream: Client of peers.
        clock: Source of time.
        announced: Told which blocks a line announced.
        pause: Returns when a peer may be asked again.
    """

    def __init__(
        self,
        holding: LocalVersion,
        *,
        givers: PeerSelection,
        upstream: PeerClient,
        clock: Clock,
        announced: Callable[[Iterable[BlockSpan]], None],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        self._holding = holding
        self._givers = givers
        self._upstream = upstream
        self._clock = clock
        self._announced = announced
        self._pause = pause
        self._heard: set[str] = set()
        """Peers that are being read from."""
        self._quiet: set[str] = set()
        """Peers that had no news of the manifest; the others are heard before they are again."""

    def lines(self) -> list[Coroutine[Any, Any, None]]:
        """The followers, to be run side by side; each returns when the manifest is sealed."""
        count = min(MOST_FOLLOWERS, self._givers.count)
        return [self._follow(late=max(0, number + 1 - FOLLOWERS)) for number in range(count)]

    async def _follow(self, *, late: int) -> None:
        """Begins after so many patiences."""
        if late:
            await self._clock.sleep(late * self._upstream.patience.answer)
        while not self._holding.manifest.sealed:
            url = self._givers.draw(without=self._heard | self._quiet)
            if url is None and self._quiet:
                self._quiet.clear()
                continue
            if url is None:
                await self._pause()
                continue
            self._heard.add(url)
            try:
                await self._read(url)
            except Failed as error:
                self._givers.note_fault(url, error.fault)
            except BadManifest as error:
                _log.warning("bad-manifest", peer=url, why=error.detail)
                self._givers.note_fault(url, Fault.BAD_MANIFEST)
            finally:
                self._heard.discard(url)

    async def _read(self, url: str) -> None:
        holding = self._holding
        following = holding.manifest.length
        heard = self._clock.monotonic()
        async for line in self._upstream.manifest_lines(url, holding.manifest.key, start=following):
            if line == b"\n":
                # An origin may be silent for long, and a relay may withhold lines: silence is no fault.
                silent = self._clock.monotonic() - heard > self._upstream.patience.answer.total_seconds()
                if silent and self._givers.count > FOLLOWERS:
                    self._quiet.add(url)
                    return
                continue
            heard = self._clock.monotonic()
            if following == holding.manifest.length:  # or the other follower was first
                self._announced(holding.take(line))
            following += 1
            if holding.manifest.sealed:
                return
        raise Failed(Fault.GONE, f"{url} ended the manifest without a seal")
