"""Client of a peer for everything but blocks: listings, growing manifests, and bandwidth probes.

Responses are checked for form only; sizes are bounded before reading.
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
from protocol.http.client import check_service_url
from protocol.versions import SPOKEN, VERSION_HEADER
from protocol.wire.base import parse_answer
from shardcast.download.connection import BlockConnection
from shardcast.errors import FailureKind, PeerFailed
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.records import MOST_EXTENSION_BYTES
from shardcast.serve.server import PROBE_BYTES
from shardcast.serve.version_index import Listing

MOST_LISTING_BYTES = 1 << 16
_FAILURES = (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError, OSError, ValueError)
"""Exceptions of a failed request; a time-out is an OSError."""

LINES_PER_SECOND = 20
LINES_AT_ONCE = 40
"""Listings and keep-alive lines that are read from one stream, at most; an honest peer sends fewer."""

_MOST_LINE = MOST_EXTENSION_BYTES + (1 << 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTimeouts:
    """Time limits of peers."""

    connect: timedelta = timedelta(seconds=5)
    answer: timedelta = timedelta(seconds=10)
    """For a listing, a probe, or the first extension of a manifest."""
    appear: timedelta = timedelta(seconds=5)
    """For a requested version to be listed by any relay: a new version needs time to reach all of them."""
    silence: timedelta = timedelta(seconds=20)
    """Between two lines of a stream; peers send a keep-alive line every five seconds."""
    stall: timedelta = timedelta(seconds=10)
    """Between two slices of a block."""
    progress: timedelta = timedelta(minutes=2)
    """Time without a new block or extension after which a download gives up; its blocks are kept."""
    hedge: timedelta = timedelta(milliseconds=1500)
    """Time without a block on one connection after which an idle connection requests the same block."""


class _LineRate:
    """Rate limit on lines that a peer can produce without cost; TCP back-pressure then stops the sender."""

    def __init__(self) -> None:
        self._due = 0.0

    async def wait(self) -> None:
        """Returns at once for the first `LINES_AT_ONCE` lines, then when the rate allows the next one."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now) + 1 / LINES_PER_SECOND
        early = self._due - now - LINES_AT_ONCE / LINES_PER_SECOND
        if early > 0:
            await asyncio.sleep(early)


class PeerClient:
    """Requests listings, manifests and probes from peers, over a connection pool, while it is entered.

    Args:
        timeouts: Time limits of peers.
        tls: For https; the system's certificate authorities by default.
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
        """Returns a new connection for blocks."""
        return BlockConnection(url, connect=self.timeouts.connect, stall=self.timeouts.stall, tls=self._tls)

    async def listing(self, url: str) -> Listing:
        """Returns a peer's listing.

        Raises:
            PeerFailed: The peer sent no valid listing.
        """
        return _listing(url, await self._read(url, "/v1/versions", MOST_LISTING_BYTES))

    async def probe(self, url: str) -> float:
        """Returns the bandwidth to a peer in bytes per second, its response time included.

        Raises:
            PeerFailed: The peer sent no valid probe.
        """
        began = time.perf_counter()  # real time even in tests: the network has no other
        body = await self._read(url, "/v1/probe", PROBE_BYTES)
        if len(body) != PROBE_BYTES:
            raise PeerFailed(FailureKind.REFUSED, f"{url} sent a probe of {len(body)} bytes")
        return len(body) / max(time.perf_counter() - began, 1e-6)

    async def listings(self, url: str) -> AsyncIterator[Listing]:
        """Yields a peer's listing now and after each change, until the connection ends.

        Raises:
            PeerFailed: The peer sends invalid data, or nothing for too long.
        """
        async for line in self._lines(url, "/v1/versions?follow=1", MOST_LISTING_BYTES):
            yield _listing(url, line)

    async def manifest_lines(self, url: str, key: VersionKey, *, start: int) -> AsyncIterator[bytes]:
        """Yields lines of a manifest from extension `start` on, as they arrive; an empty line is a keep-alive.

        Raises:
            PeerFailed: The peer lacks the version, sends invalid data, or sends nothing for too long.
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
                    async with asyncio.timeout(
                        self.timeouts.silence.total_seconds()
                    ):  # for the whole line, so that bytes can't be dripped
                        line = await response.content.readline()
                except _FAILURES as error:
                    raise _failed(url, error) from error
                if not line:
                    return
                if len(line) > most or not line.endswith(b"\n"):
                    raise PeerFailed(
                        FailureKind.CUT if len(line) <= most else FailureKind.REFUSED, f"{url} sent no whole line"
                    )
                if line == b"\n" or not empty:
                    await rate.wait()
                if empty or line != b"\n":
                    yield line

    @asynccontextmanager
    async def _get(self, url: str, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("a PeerClient is used inside its `async with`")
        timeout = aiohttp.ClientTimeout(
            total=None,  # aiohttp's total time-out can swallow a cancellation (docs/decisions/0042)
            sock_connect=self.timeouts.connect.total_seconds(),
            sock_read=self.timeouts.silence.total_seconds(),
        )
        try:
            response = await self._session.get(url + path, timeout=timeout, allow_redirects=False)
        except _FAILURES as error:
            raise _failed(url, error) from error
        try:
            if response.status == 404:
                raise PeerFailed(FailureKind.GONE, f"{url} does not have that")
            if response.status != 200 or response.headers.get("Content-Encoding", "identity") != "identity":
                raise PeerFailed(FailureKind.REFUSED, f"{url} answered {response.status} instead of 200")
            yield response
        finally:
            response.close()


def check_peers(urls: Sequence[str], *, allow_plain_http: bool) -> list[str]:
    """Returns the URLs without trailing slashes and without duplicates.

    Raises:
        InvalidInput: There is no URL, or one is invalid, or is plain http to another machine without permission.
    """
    if not urls:
        raise InvalidInput("no relay is named", hint="give at least one URL of a relay or an origin")
    for url in urls:
        check_service_url(url, allow_plain_http=allow_plain_http)
    return list(dict.fromkeys(url.rstrip("/") for url in urls))


def _listing(url: str, body: bytes) -> Listing:
    try:
        return parse_answer(Listing, body)
    except ValidationError:
        raise PeerFailed(FailureKind.REFUSED, f"{url} sent no listing of versions") from None


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
