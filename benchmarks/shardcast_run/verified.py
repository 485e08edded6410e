"""Measures the minimum cost of verification: the tree of `plain` with the hashes that the design demands.

The origin writes the trainer's bytes and computes their SHA-256 and BLAKE3; a relay computes BLAKE3 of each block
before
it writes it and sends it on; a client computes BLAKE3 of each block before it writes it, and SHA-256 of the whole from
its file, in order, after the blocks. There are no manifests, signatures, HTTP or choices between relays: the additional
cost of muster's shardcast comes from those.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from benchmarks.shardcast_run.plain import REQUEST, SIZE, exactly, listen, send
from benchmarks.shardcast_run.processes import say
from shardcast.disk import WRITE_BYTES

BLOCK = 1 << 20
SPAN = 16 * BLOCK
"""Bytes that a client requests from one relay before it switches to the other."""


class Arrived:
    """Tracks how much of a file has arrived without a gap."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._until = 0
        self._early: set[int] = set()
        self._news = threading.Condition()

    def add(self, block: int) -> None:
        """Records a block that has been written."""
        with self._news:
            self._early.add(block)
            while self._until // BLOCK in self._early and self._until < self.size:
                self._early.discard(self._until // BLOCK)
                self._until = min(self._until + BLOCK, self.size)
            self._news.notify_all()

    def beyond(self, at: int) -> int:
        """Returns the position of the first gap once it is beyond `at`."""
        with self._news:
            while self._until <= at:
                self._news.wait()
            return self._until


def origin(source: Path, store: Path) -> None:
    """Writes the file and sends it as it is hashed, once it is started."""
    size = source.stat().st_size
    descriptor = _reserved(store, size)
    arrived = Arrived(size)
    listen(_giving(descriptor, arrived))
    sys.stdin.readline()
    say(began=time.monotonic())
    buffer = memoryview(bytearray(BLOCK))
    sha256 = hashlib.sha256()
    with source.open("rb", buffering=0) as file:
        for block in range(-(-size // BLOCK)):
            piece = buffer[: file.readinto(buffer)]
            _write(descriptor, piece, block * BLOCK)
            sha256.update(piece)
            blake3(piece).digest()
            arrived.add(block)
    sys.stdin.readline()


def relay(upstream: int, store: Path) -> None:
    """Receives the file and passes on each block once it is hashed."""
    above = socket.create_connection(("127.0.0.1", upstream))
    (size,) = SIZE.unpack(exactly(above, SIZE.size))
    descriptor = _reserved(store, size)
    arrived = Arrived(size)
    listen(_giving(descriptor, arrived))
    _take(above, descriptor, arrived, [(0, size)])
    sys.stdin.readline()


def client(relays: list[int], target: Path) -> None:
    """Fetches every other span from each relay."""
    connections = [socket.create_connection(("127.0.0.1", port)) for port in relays]
    (size,) = {SIZE.unpack(exactly(connection, SIZE.size))[0] for connection in connections}
    descriptor = _reserved(target, size)
    arrived = Arrived(size)
    say(ready=True)
    spans = [(at, min(at + SPAN, size)) for at in range(0, size, SPAN)]
    takers = [
        threading.Thread(target=_take, args=(connection, descriptor, arrived, spans[number :: len(relays)]))
        for number, connection in enumerate(connections)
    ]
    for taker in takers:
        taker.start()
    sha256 = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    at = 0
    while at < size:
        end = arrived.beyond(at)
        while at < end:
            read = os.preadv(descriptor, [buffer[: min(BLOCK, end - at)]], at)
            sha256.update(buffer[:read])
            at += read
    say(done=time.monotonic(), size=size)
    sys.stdin.readline()


def _giving(descriptor: int, arrived: Arrived) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        with connection:
            connection.sendall(SIZE.pack(arrived.size))
            while True:
                at, end = REQUEST.unpack(exactly(connection, REQUEST.size))
                while at < end:
                    ready = min(arrived.beyond(at), end)
                    send(connection, descriptor, at, ready)
                    at = ready

    return serve


def _take(connection: socket.socket, descriptor: int, arrived: Arrived, spans: list[tuple[int, int]]) -> None:
    buffer = memoryview(bytearray(BLOCK))
    connection.sendall(b"".join(REQUEST.pack(*span) for span in spans))
    for start, end in spans:
        for at in range(start, end, BLOCK):
            piece = buffer[: min(BLOCK, end - at)]
            if connection.recv_into(piece, len(piece), socket.MSG_WAITALL) != len(piece):
                raise ConnectionError("closed early")
            blake3(piece).digest()
            _write(descriptor, piece, at)
            arrived.add(at // BLOCK)


def _reserved(path: Path, size: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)
    return descriptor


def _write(descriptor: int, piece: memoryview, at: int) -> None:
    for start in range(0, len(piece), WRITE_BYTES):
        os.pwrite(descriptor, piece[start : start + WRITE_BYTES], at + start)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["origin", source, store]:
            origin(Path(source), Path(store))
        case ["relay", upstream, store]:
            relay(int(upstream), Path(store))
        case ["client", target, *ports]:
            client([int(port) for port in ports], Path(target))
