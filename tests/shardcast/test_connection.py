"""A connection receives complete blocks in packets of any size, and shows its progress."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from shardcast.download.connection import BlockConnection
from shardcast.errors import FailureKind, PeerFailed
from shardcast.manifest.manifest import BlockSpan, FileProgress, VersionKey
from shardcast.manifest.records import BLOCK

DATA = random.Random(5).randbytes(2 * BLOCK + 777)
KEY = VersionKey(1, 1)
STATE = FileProgress(index=0, path="model", kind="full", expected=None, announced=len(DATA))
WHOLE = BlockSpan(0, 0, 3)
HEAD = (
    f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-{len(DATA) - 1}/*\r\nContent-Length: {len(DATA)}\r\n\r\n"
)

Serve = Callable[[socket.socket], None]


@contextmanager
def peer(*answers: Serve) -> Iterator[str]:
    """Runs a peer that accepts one connection and gives one answer to each request on it."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(60)

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            for answer in answers:
                asked = b""
                while not asked.endswith(b"\r\n\r\n"):
                    asked += connection.recv(4096)
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        thread.join(60)
        server.close()


def connection_to(url: str) -> BlockConnection:
    return BlockConnection(url, connect=timedelta(seconds=20), stall=timedelta(seconds=20), tls=None)


def fetched(connection: BlockConnection) -> bytes:
    came: list[bytes] = []
    connection.fetch(KEY, STATE, WHOLE, lambda _, data: came.append(bytes(data)))
    assert [len(block) for block in came] == [BLOCK, BLOCK, 777]
    return b"".join(came)


@pytest.mark.parametrize("with_head", [0, 1, 8192 - len(HEAD), 8193, 70_000])
def test_bytes_that_arrive_with_the_head_belong_to_the_block_and_the_connection_is_reused(with_head: int) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD.encode() + DATA[:with_head])
        connection.sendall(DATA[with_head:])

    with peer(answer, answer) as url:
        connection = connection_to(url)
        assert fetched(connection) == DATA
        assert fetched(connection) == DATA
        assert connection.received == 2 * len(DATA)
        connection.close()


def test_half_a_block_is_counted_as_progress() -> None:
    begun = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD.encode() + DATA[: BLOCK // 2])
        begun.wait(60)
        connection.sendall(DATA[BLOCK // 2 :])

    with peer(answer) as url:
        connection = connection_to(url)
        came: list[bytes] = []
        fetching = threading.Thread(target=lambda: came.append(fetched(connection)))
        fetching.start()
        while not connection.received and fetching.is_alive():
            fetching.join(0.01)
        assert BLOCK // 4 <= connection.received <= BLOCK // 2
        begun.set()
        fetching.join(60)
        connection.close()
    assert came == [DATA]


def test_a_peer_that_closes_within_a_block_is_reported_as_cut() -> None:
    with peer(lambda connection: connection.sendall(HEAD.encode() + DATA[: BLOCK + 5])) as url:
        connection = connection_to(url)
        with pytest.raises(PeerFailed) as failed:
            fetched(connection)
    assert failed.value.kind is FailureKind.CUT


def test_a_connection_cut_by_another_thread_ends_at_once() -> None:
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD.encode() + DATA[: BLOCK + 5])
        ended.wait(60)

    with peer(answer) as url:
        connection = connection_to(url)
        errors: list[PeerFailed] = []

        def work() -> None:
            try:
                connection.fetch(KEY, STATE, WHOLE, lambda *_: connection.cut())
            except PeerFailed as error:
                errors.append(error)

        working = threading.Thread(target=work)
        working.start()
        working.join(15)  # less than the stall time-out of 20 s, which must not be the reason for the end
        assert not working.is_alive()
        ended.set()
    assert [error.kind for error in errors] == [FailureKind.CUT]
