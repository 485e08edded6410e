"""Blocking HTTP connection that receives blocks from a peer in a thread.

The connection uses `http.client` instead of an asynchronous client, because `http.client` reads into the caller's
buffer and releases the GIL during the read. This halves the CPU time per byte (docs/decisions/0012). The peer is
untrusted: the connection checks status, range and length before it reads the body, reads no more bytes than it
requested, and refuses redirects and compressed answers.
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
"""Number of bytes after which progress is recorded. A peer that sends fewer bytes than this within the stall time-out
counts as silent."""

_TICK = timedelta(seconds=1)
"""Longest time for which the kernel collects bytes of a block before it wakes the reading thread."""

Sink = Callable[[int, memoryview], None]
"""Function that verifies a received block, given by its number and bytes, and writes it; it may raise `BadBlock`."""


class BlockConnection:
    """A persistent connection to a peer, for requests of blocks.

    Only one thread at a time may use the connection, but any thread may call `cut`.

    Args:
        url: URL of the peer.
        connect: Longest time to open the connection.
        stall: Longest time without a byte of an answer.
        tls: TLS context for https; None trusts the system's certificate authorities.
    """

    def __init__(self, url: str, *, connect: timedelta, stall: timedelta, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self.url = url
        self.received = 0
        """Number of bytes received so far; the watchdog of a transfer cuts the connection if this number stops
        growing."""
        self._uncounted = 0
        """Number of further bytes that `received` does not count yet."""
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
        """Requests blocks, and passes each to `sink` as soon as it is complete.

        Args:
            key: The version and the attempt at it.
            state: The file of the blocks.
            span: The blocks to request.
            sink: Function that verifies and stores a block.

        Raises:
            PeerFailed: The peer did not send all requested blocks. `sink` has accepted the blocks that the peer did
                send.
            BadBlock: `sink` refused a block, because its hash differs from the signed one.
        """
        first = span.first * BLOCK
        last = min((span.first + span.count) * BLOCK, state.announced) - 1
        try:
            response = self._request(key, state.index, first, last)
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
        """Returns whether `cut` was called."""
        return self._cut.is_set()

    def cut(self) -> None:
        """Ends the running request, from any thread; the connection can't be used again."""
        self._cut.set()
        sock = self._http.sock
        if sock is not None:
            with suppress(OSError, ValueError):  # the socket may be closed already
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection; the next request opens a new one."""
        self._http.close()

    def _request(self, key: VersionKey, file: int, first: int, last: int) -> http.client.HTTPResponse:
        """Sends a request, and returns the response after its headers were read and checked.

        If the peer closed the connection after an earlier request, sends the request again on a new connection.
        """
        kept = self._http.sock is not None
        try:
            return self._request_once(key, file, first, last)
        except (ConnectionError, http.client.BadStatusLine):
            if not kept or self._cut.is_set():
                raise
        self.close()
        return self._request_once(key, file, first, last)

    def _request_once(self, key: VersionKey, file: int, first: int, last: int) -> http.client.HTTPResponse:
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
            raise PeerFailed(FailureKind.REFUSED, f"{self.url} answered with status {response.status} instead of 206")
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or (int(found[1]), int(found[2])) != (first, last):
            raise PeerFailed(FailureKind.REFUSED, f"{self.url} sent another range than was requested")
        if response.length != last - first + 1 or response.headers.get("Content-Encoding", "identity") != "identity":
            raise PeerFailed(
                FailureKind.REFUSED, f"{self.url} sent a compressed answer, or another length than was requested"
            )

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
            self._uncounted += read
            if self._uncounted >= _SLICE or at == len(piece):
                self.received, self._uncounted = self.received + self._uncounted, 0

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
    """Body of a response, read through `http.client`.

    This class is used with TLS, where the socket itself has only encrypted bytes.
    """

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def read(self, piece: memoryview) -> int:
        """Reads some bytes into the buffer; returns their number, or 0 at the end of the body."""
        return self._response.readinto(piece[:_SLICE])

    def end(self) -> None:
        """Makes the connection ready for the next request, after the whole body was read."""
        self._response.read()


class _WholeBlocks(_Body):
    """Body of a response; a call reads a whole block, if it arrives within one tick, directly from the socket.

    The thread then wakes once per block, instead of once per packet. This matters because with several connections in
    one process each wake-up waits for the GIL: these waits took more time than the work on the bytes.

    Args:
        response: The response. `http.client` has read the response's head, and may have buffered the first bytes of its
            body.
        sock: Socket with the rest of the body.
        tick: Seconds after which a call returns the bytes that have arrived so far.
        stall: Seconds without a byte after which the peer counts as stalled.
    """

    def __init__(self, response: http.client.HTTPResponse, sock: socket.socket, *, tick: float, stall: float) -> None:
        super().__init__(response)
        self._sock = sock
        self._most_silent_ticks = max(1, round(stall / tick))
        self._drained = False
        # The time-out is set in the kernel (as a `struct timeval`): Python's own time-out would make the socket
        # non-blocking, and `MSG_WAITALL` has no effect on a non-blocking socket.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(tick), int(tick % 1 * 1e6)))

    def read(self, piece: memoryview) -> int:
        """Fills the buffer with the bytes that arrive within a tick.

        Returns the number of these bytes, or 0 if the peer closed the connection. The caller must not read beyond the
        end of the body.

        Raises:
            TimeoutError: No byte arrived within the stall time-out.
        """
        if self._drained:
            return self._receive(piece)
        most = min(len(piece), io.DEFAULT_BUFFER_SIZE)
        early = self._response.fp.read1(most)  # bytes that `http.client` received together with the head
        piece[: len(early)] = early
        if most == io.DEFAULT_BUFFER_SIZE:
            # A read of this size empties the buffer of `http.client`: all further bytes come from the socket.
            self._drained = True
            self._sock.settimeout(None)  # from here on SO_RCVTIMEO limits each read, in the kernel
        return len(early)

    def end(self) -> None:
        """Makes the connection ready for the next request, after the whole body was read."""
        self._response.close()

    def _receive(self, piece: memoryview) -> int:
        for _ in range(self._most_silent_ticks):
            with suppress(BlockingIOError):  # no byte arrived during this tick
                return self._sock.recv_into(piece, len(piece), socket.MSG_WAITALL)
        raise TimeoutError("no byte arrived")
