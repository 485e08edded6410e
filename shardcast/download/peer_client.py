"""HTTP client for listings, manifests and bandwidth probes of peers.

Blocks are requested by `BlockConnection`, not by this client.

The client limits the size of each response while it reads. It parses listings, but verifies no signature: the caller
verifies manifest lines.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from protocol.errors import InvalidInput
from protocol.http.location import check_service_url
from protocol.versions import SPOKEN, VERSION_HEADER
from protocol.wire.base import parse_answer
from shardcast.download.connection import BlockConnection
from shardcast.errors import FailureKind, PeerFailed
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.records import MOST_EXTENSION_BYTES
from shardcast.serve.server import PROBE_BYTES
from shardcast.serve.version_index import Listing

MOST_LISTING_BYTES = 1 << 16
"""Maximum size of a listing in bytes."""
_FAILURES = (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError, OSError, ValueError)
"""Exceptions that aiohttp raises for a failed request; `TimeoutError` is an `OSError`."""

LINES_PER_SECOND = 20
"""Maximum number of listings, or keep-alive lines, that the client reads from one stream per second. Honest peers send
fewer lines."""
LINES_AT_ONCE = 40
"""Number of lines that the client reads without delay before `LINES_PER_SECOND` applies."""

_MOST_LINE = MOST_EXTENSION_BYTES + (1 << 10)
"""Maximum size of a manifest line in bytes, signature included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTimeouts:
    """Time-outs of requests to peers."""

    connect: timedelta = timedelta(seconds=5)
    """Longest time to open a connection."""
    answer: timedelta = timedelta(seconds=10)
    """Longest time until a listing, a probe or the first extension of a manifest is completely received."""
    appear: timedelta = timedelta(seconds=5)
    """Longest time to wait until any relay lists a requested version, because a new version reaches relays late."""
    silence: timedelta = timedelta(seconds=20)
    """Longest time between two lines of a stream; honest peers send a keep-alive line every five seconds."""
    stall: timedelta = timedelta(seconds=10)
    """Longest time in which a peer may send less than 128 KiB of a block."""
    progress: timedelta = timedelta(minutes=2)
    """Time without a new block or extension after which a download fails; the next download reuses the blocks on
    disk."""
    hedge: timedelta = timedelta(milliseconds=1500)
    """Time without a block on one connection after which an idle connection requests the missing blocks from another
    peer."""


class _LineRate:
    """Limits the rate at which the client reads lines that a peer can produce without effort.

    While the client does not read, TCP flow control stops the peer.
    """

    def __init__(self) -> None:
        self._due = 0.0

    async def wait(self) -> None:
        """Waits until the rate allows another line; the first `LINES_AT_ONCE` lines need no wait."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now) + 1 / LINES_PER_SECOND
        early = self._due - now - LINES_AT_ONCE / LINES_PER_SECOND
        if early > 0:
            await asyncio.sleep(early)


class PeerClient:
    """Requests listings, manifests and probes from peers; an async context manager.

    Args:
        timeouts: Time-outs of requests.
        tls: TLS context for https; by default it trusts the system's certificate authorities.
    """

    def __init__(self, *, timeouts: PeerTimeouts | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.timeouts = timeouts or PeerTimeouts()
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=True if self._tls is None else self._tls),
            headers={VERSION_HEADER: str(SPOKEN), "User-Agent": "muster", "Accept-Encoding": "identity"},
            auto_decompress=False,
            read_bufsize=_MOST_LINE,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def connection(self, url: str) -> BlockConnection:
        """Returns a new connection with which to request blocks from a peer."""
        return BlockConnection(url, connect=self.timeouts.connect, stall=self.timeouts.stall, tls=self._tls)

    async def listing(self, url: str) -> Listing:
        """Requests a peer's listing of versions.

        Raises:
            PeerFailed: The peer sent no valid listing.
        """
        return _listing(url, await self._read(url, "/v1/versions", MOST_LISTING_BYTES))

    async def probe(self, url: str) -> float:
        """Measures the bandwidth to a peer in bytes per second.

        The time until the first byte of the answer counts, too.

        Raises:
            PeerFailed: The peer sent no valid answer to the probe.
        """
        began = time.perf_counter()  # not the injected clock, because the network takes real time, even in tests
        body = await self._read(url, "/v1/probe", PROBE_BYTES)
        if len(body) != PROBE_BYTES:
            raise PeerFailed(FailureKind.REFUSED, f"{url} answered a probe with {len(body)} bytes, not {PROBE_BYTES}")
        return len(body) / max(time.perf_counter() - began, 1e-6)

    async def listings(self, url: str) -> AsyncIterator[Listing]:
        """Yields a peer's present listing, and a new one after each change.

        The iteration ends when the peer ends the stream.

        Raises:
            PeerFailed: The peer sends invalid data, or sends nothing for `PeerTimeouts.silence`.
        """
        async for line in self._lines(url, "/v1/versions?follow=1", MOST_LISTING_BYTES):
            yield _listing(url, line)

    async def manifest_lines(self, url: str, key: VersionKey, *, start: int) -> AsyncIterator[bytes]:
        """Yields unverified lines of a manifest from extension `start` on, as they arrive.

        An empty line is a keep-alive: the peer has no further line yet.

        Raises:
            PeerFailed: The peer lacks the version, sends invalid data, or sends nothing for `PeerTimeouts.silence`.
        """
        path = f"/v1/versions/{key.version}/{key.attempt}/manifest?from={start}"
        async for line in self._lines(url, path, _MOST_LINE, empty=True):
            yield line

    async def _read(self, url: str, path: str, most: int) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self.timeouts.answer.total_seconds()), self._get(url, path) as response:
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > most:
                        raise PeerFailed(FailureKind.REFUSED, f"{url} sent more than {most} bytes")
        except _FAILURES as error:
            raise _failed(url, error) from error
        return bytes(body)

    async def _lines(self, url: str, path: str, most: int, *, empty: bool = False) -> AsyncIterator[bytes]:
        rate = _LineRate()
        async with self._get(url, path) as response:
            while True:
                try:
                    # The time-out is for a whole line, so that a peer can't prolong the wait by sending a byte now and
                    # then.
                    async with asyncio.timeout(self.timeouts.silence.total_seconds()):
                        line = await response.content.readline()
                except _FAILURES as error:
                    raise _failed(url, error) from error
                if not line:
                    return
                if len(line) > most or not line.endswith(b"\n"):
                    raise PeerFailed(
                        FailureKind.CUT if len(line) <= most else FailureKind.REFUSED,
                        f"{url} sent an incomplete line, or one of more than {most} bytes",
                    )
                if line == b"\n" or not empty:
                    await rate.wait()
                if empty or line != b"\n":
                    yield line

    @asynccontextmanager
    async def _get(self, url: str, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("PeerClient was used outside of its `async with` block")
        timeout = aiohttp.ClientTimeout(
            total=None,  # aiohttp's total time-out can lose a task's cancellation (docs/decisions/0042)
            sock_connect=self.timeouts.connect.total_seconds(),
            sock_read=self.timeouts.silence.total_seconds(),
        )
        try:
            response = await self._session.get(url + path, timeout=timeout, allow_redirects=False)
        except _FAILURES as error:
            raise _failed(url, error) from error
        try:
            if response.status == 404:
                raise PeerFailed(FailureKind.GONE, f"{url} does not have {path}")
            if response.status != 200 or response.headers.get("Content-Encoding", "identity") != "identity":
                raise PeerFailed(
                    FailureKind.REFUSED, f"{url} answered with status {response.status}, or in a compressed form"
                )
            yield response
        finally:
            response.close()


def check_peers(urls: Sequence[str], *, allow_plain_http: bool) -> list[str]:
    """Checks the URLs of peers; returns them without trailing slashes and without duplicates.

    Raises:
        InvalidInput: There is no URL, a URL is invalid, or a URL is plain http to another machine and plain http is not
            allowed.
    """
    if not urls:
        raise InvalidInput("the list of relays is empty", hint="give at least one URL of a relay or an origin")
    for url in urls:
        check_service_url(url, allow_plain_http=allow_plain_http)
    return list(dict.fromkeys(url.rstrip("/") for url in urls))


def _listing(url: str, body: bytes) -> Listing:
    try:
        return parse_answer(Listing, body)
    except ValidationError:
        raise PeerFailed(FailureKind.REFUSED, f"{url} sent an invalid listing of versions") from None


def _failed(url: str, error: Exception) -> PeerFailed:
    if isinstance(error, TimeoutError):
        kind = FailureKind.STALLED
    elif isinstance(error, (aiohttp.ClientConnectorError, aiohttp.InvalidURL)):
        kind = FailureKind.UNREACHABLE
    elif isinstance(error, (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionError)):
        kind = FailureKind.CUT
    else:
        kind = FailureKind.REFUSED
    return PeerFailed(kind, f"{url} failed ({type(error).__name__})")
