"""One HTTP connection to a peer that brings blocks: blocking, in a thread, into a buffer and from there to disk.

`http.client` rather than an asynchronous client, because it reads into memory of ours and leaves the interpreter free
meanwhile: half the CPU per byte (docs/decisions/0012). Nothing here trusts the peer: status, range and length are
checked before a byte is read, no more is read than was asked for, and redirects and encodings are refused.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit

from protocol.versions import SPOKEN, VERSION_HEADER
from shardcast.errors import FailureKind, PeerFailed
from shardcast.manifest.manifest import BlockSpan, FileProgress, VersionKey
from shardcast.manifest.records import BLOCK

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,14})-([0-9]{1,14})/([0-9]{1,14}|\*)")
_SLICE = 1 << 17
"""Bytes after which progress is noted; a peer that takes longer for them than a stall is as good as silent."""

_TICK = timedelta(seconds=1)
"""The kernel gathers a whole block before it wakes the thread, but for no longer than this."""

Sink = Callable[[int, memoryview], None]
"""Takes a block that came: verifies it and puts it into its place, or raises BadBlock."""


class BlockConnection:
    """A connection that is kept between requests; used by one thread at a time, and cut by any.

    Args:
        url: The peer's.
        connect: How long connecting, and each wait for bytes, may take.
        stall: The longest silence in an answer.
        tls: For https.
    """

    def __init__(self, url: str, *, connect: timedelta, stall: timedelta, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self.url = url
        self.received = 0
        """Bytes that came so far; a watchman looks whether it grows."""
        self._unnoted = 0
        self._prefix = parts.path.rstrip("/")
        self._stall = stall.total_seconds()
        self._tick = min(_TICK, stall / 4).total_seconds()
        self._cut = threading.Event()
        host = parts.hostname or ""
        self._http: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context() if tls is None else tls
            self._http = http.client.HTTPSConnection(host, parts.port, timeout=connect.total_seconds(), context=context)
        else:
            self._http = http.client.HTTPConnection(host, parts.port, timeout=connect.total_seconds())
        self._buffer = memoryview(bytearray(BLOCK))

    def fetch(self, key: VersionKey, state: FileProgress, span: BlockSpan, sink: Sink) -> None:
        """Asks for blocks and hands each to `sink` as it comes.

        Raises:
            PeerFailed: The peer did not bring all of them. Those that were handed on are good.
            BadBlock: One is not what the publisher signed.
        """
        first = span.first * BLOCK
        last = min((span.first + span.count) * BLOCK, state.announced) - 1
        try:
            response = self._answer(key, state.index, first, last)
            body = self._body(response)
            for block in range(span.first, span.first + span.count):
                piece = self._buffer[: state.size_of(block)]
                self._read(body, piece)
                sink(block, piece)
            body.end()
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise self._failure(error) from error
            raise

    @property
    def is_cut(self) -> bool:
        """Returns whether the connection is closed."""
        return self._cut.is_set()

    def cut(self) -> None:
        """Ends what the connection is at, from another thread."""
        self._cut.set()
        sock = self._http.sock
        if sock is not None:
            with suppress(OSError, ValueError):  # closed meanwhile
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes it; the next request connects anew."""
        self._http.close()

    def _answer(self, key: VersionKey, file: int, first: int, last: int) -> http.client.HTTPResponse:
        """The head of a good answer; asked for again on a new connection if the kept one had been closed."""
        kept = self._http.sock is not None
        try:
            return self._ask(key, file, first, last)
        except (ConnectionError, http.client.BadStatusLine):
            if not kept or self._cut.is_set():
                raise
        self.close()
        return self._ask(key, file, first, last)

    def _ask(self, key: VersionKey, file: int, first: int, last: int) -> http.client.HTTPResponse:
        target = f"{self._prefix}/v1/versions/{key.version}/{key.attempt}/files/{file}"
        headers = {
            "Range": f"bytes={first}-{last}",
            "Accept-Encoding": "identity",
            "User-Agent": "muster",
            VERSION_HEADER: str(SPOKEN),
        }
        if self._http.sock is None:
            self._http.connect()
        self._set_stall()
        if self._cut.is_set():
            raise PeerFailed(FailureKind.CUT, f"the connection to {self.url} was cut")
        self._http.request("GET", target, headers=headers)
        response = self._http.getresponse()
        self._check(response, first, last)
        return response

    def _set_stall(self) -> None:
        if self._http.sock is not None:
            self._http.sock.settimeout(self._stall)

    def _check(self, response: http.client.HTTPResponse, first: int, last: int) -> None:
        if response.status == 404:
            raise PeerFailed(FailureKind.GONE, f"{self.url} does not have the version")
        if response.status != 206:
            raise PeerFailed(FailureKind.REFUSED, f"{self.url} answered {response.status} instead of 206")
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or (int(found[1]), int(found[2])) != (first, last):
            raise PeerFailed(FailureKind.REFUSED, f"{self.url} sent another range than it was asked for")
        if response.length != last - first + 1 or response.headers.get("Content-Encoding", "identity") != "identity":
            raise PeerFailed(FailureKind.REFUSED, f"{self.url} sent another length than its range has")

    def _body(self, response: http.client.HTTPResponse) -> _Body:
        sock = self._http.sock
        if sock is None or isinstance(sock, ssl.SSLSocket):
            return _Body(response)
        return _WholeBlocks(response, sock, tick=self._tick, stall=self._stall)

    def _read(self, body: _Body, piece: memoryview) -> None:
        at = 0
        while at < len(piece):
            read = body.read(piece[at:])
            if not read:
                raise PeerFailed(FailureKind.CUT, f"{self.url} closed the connection in the middle of an answer")
            at += read
            self._unnoted += read
            if self._unnoted >= _SLICE or at == len(piece):
                self.received, self._unnoted = self.received + self._unnoted, 0

    def _failure(self, error: OSError | http.client.HTTPException) -> PeerFailed:
        if isinstance(error, TimeoutError):
            kind, what = FailureKind.STALLED, "stopped sending"
        elif isinstance(error, (http.client.IncompleteRead, ConnectionResetError, BrokenPipeError)):
            kind, what = FailureKind.CUT, "closed the connection"
        elif isinstance(error, http.client.HTTPException):
            kind, what = FailureKind.REFUSED, "did not answer in HTTP"
        else:
            kind, what = FailureKind.UNREACHABLE, "can't be reached"
        return PeerFailed(kind, f"{self.url} {what} ({type(error).__name__})")


class _Body:
    """The bytes of an answer, as `http.client` gives them: what TLS needs."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def read(self, piece: memoryview) -> int:
        """Reads what there is; 0 at the end."""
        return self._response.readinto(piece[:_SLICE])

    def end(self) -> None:
        """Frees the connection for the next request; nothing is left of the answer."""
        self._response.read()


class _WholeBlocks(_Body):
    """Reads one block per call straight from the socket, so that the thread wakes once instead of per packet.

    With several connections in one process each wake-up waits for the GIL, which cost more than the bytes.

    Args:
        response: Its head was read, and some of its body with it.
        sock: Where the rest comes from.
        tick: Seconds after which a call returns with less than it was asked for.
        stall: Seconds without a byte that are too many.
    """

    def __init__(self, response: http.client.HTTPResponse, sock: socket.socket, *, tick: float, stall: float) -> None:
        super().__init__(response)
        self._sock = sock
        self._most_silent = max(1, round(stall / tick))
        self._drained = False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(tick), int(tick % 1 * 1e6)))

    def read(self, piece: memoryview) -> int:
        """Fills the piece, or what came of it in a tick; 0 at the end.

        Raises:
            TimeoutError: Nothing came for too long.
        """
        if self._drained:
            return self._receive(piece)
        most = min(len(piece), io.DEFAULT_BUFFER_SIZE)
        early = self._response.fp.read1(most)  # all that was read with the head, and of what was not, a little
        piece[: len(early)] = early
        if most == io.DEFAULT_BUFFER_SIZE:
            self._drained = True
            self._sock.settimeout(None)  # the kernel keeps the time from here on
        return len(early)

    def end(self) -> None:
        """Frees the connection for the next request; nothing is left of the answer."""
        self._response.close()

    def _receive(self, piece: memoryview) -> int:
        for _ in range(self._most_silent):
            with suppress(BlockingIOError):  # a tick without a byte
                return self._sock.recv_into(piece, len(piece), socket.MSG_WAITALL)
        raise TimeoutError("nothing came")
