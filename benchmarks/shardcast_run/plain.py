"""Measures the machine's limit: the same tree with bare sockets and no checks.

The origin sends the file to each relay while reading it; a relay writes the bytes and sends them on from its file at
once; a client reads one half from each relay straight into its preallocated file. Blocking sockets, one thread each.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.shardcast_run.processes import say

PIECE = 1 << 20
REQUEST = struct.Struct("<QQ")
SIZE = struct.Struct("<Q")


def origin(source: Path) -> None:
    """Sends the file to every connection, once it is started."""
    go = threading.Event()
    size = source.stat().st_size

    def serve(connection: socket.socket) -> None:
        with connection, source.open("rb") as file:
            connection.sendall(SIZE.pack(size))
            go.wait()
            send(connection, file.fileno(), 0, size)

    listen(serve)
    sys.stdin.readline()
    say(began=time.monotonic())
    go.set()
    sys.stdin.readline()


def relay(upstream: int, store: Path) -> None:
    """Receives the file and passes it on as it arrives."""
    arrived = 0
    news = threading.Condition()
    above = socket.create_connection(("127.0.0.1", upstream))
    (size,) = SIZE.unpack(exactly(above, SIZE.size))
    descriptor = os.open(store, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.sendall(SIZE.pack(size))
            at, end = REQUEST.unpack(exactly(connection, REQUEST.size))
            while at < end:
                with news:
                    while arrived <= at:
                        news.wait()
                    ready = min(arrived, end)
                send(connection, descriptor, at, ready)
                at = ready

    listen(serve)
    buffer = memoryview(bytearray(PIECE))
    while arrived < size:
        read = above.recv_into(buffer)
        if not read:
            raise ConnectionError("the origin closed the connection")
        os.pwrite(descriptor, buffer[:read], arrived)
        with news:
            arrived += read
            news.notify_all()
    sys.stdin.readline()


def client(relays: list[int], target: Path) -> None:
    """Receives a part from each relay."""
    connections = [socket.create_connection(("127.0.0.1", port)) for port in relays]
    (size,) = {SIZE.unpack(exactly(connection, SIZE.size))[0] for connection in connections}
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)
    say(ready=True)
    edges = [size * number // len(relays) for number in range(len(relays) + 1)]

    def take(connection: socket.socket, at: int, end: int) -> None:
        connection.sendall(REQUEST.pack(at, end))
        buffer = memoryview(bytearray(PIECE))
        while at < end:
            read = connection.recv_into(buffer)
            if not read:
                raise ConnectionError("a relay closed the connection")
            os.pwrite(descriptor, buffer[:read], at)
            at += read

    takers = [
        threading.Thread(target=take, args=(connection, edges[number], edges[number + 1]))
        for number, connection in enumerate(connections)
    ]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    say(done=time.monotonic(), size=size)
    sys.stdin.readline()


def send(connection: socket.socket, descriptor: int, at: int, end: int) -> None:
    """Sends a part of a file through the kernel."""
    while at < end:
        at += os.sendfile(connection.fileno(), descriptor, at, min(end - at, 8 * PIECE))


def listen(serve: Callable[[socket.socket], None]) -> None:
    """Opens a port, prints it, and serves each connection in a separate thread."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    say(port=server.getsockname()[1])


def exactly(connection: socket.socket, size: int) -> bytes:
    """Reads exactly this number of bytes from a connection."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed early")
        data += piece
    return data


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["origin", source]:
            origin(Path(source))
        case ["relay", upstream, store]:
            relay(int(upstream), Path(store))
        case ["client", target, *ports]:
            client([int(port) for port in ports], Path(target))
