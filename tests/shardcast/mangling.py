"""A TCP proxy that corrupts an origin's answers.

It flips, inserts, repeats or cuts off bytes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self


@dataclass(frozen=True, slots=True)
class Corruption:
    """The corruption of the answers on one connection."""

    kind: Literal["none", "flip", "cut", "insert", "repeat", "stall"]
    """`cut` closes the connection; `stall` sends no more bytes and keeps it open."""
    at: int
    """Number of bytes of the answers before the corruption."""
    byte: int = 0
    """The byte to insert, or the mask of the bits to flip."""


class ManglingProxy:
    """Forwards connections, and corrupts their answers.

    Args:
        host: Host of the origin.
        port: Port of the origin.
        corruptions: Corruption of the first connection, of the second one, and so on; further connections have none.
    """

    def __init__(self, host: str, port: int, corruptions: list[Corruption]) -> None:
        self.url = ""
        self._target = (host, port)
        self._corruptions = list(corruptions)
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        corruption = self._corruptions.pop(0) if self._corruptions else Corruption("none", 0)
        try:
            from_origin, to_origin = await asyncio.open_connection(*self._target)
            forward = asyncio.create_task(_pump(reader, to_origin))
            try:
                await _corrupt(from_origin, writer, corruption)
            finally:
                forward.cancel()
                to_origin.close()
        except OSError:
            pass
        finally:
            self._open.discard(task)
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def _corrupt(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, corruption: Corruption) -> None:
    passed = 0
    while data := await reader.read(1 << 16):
        at = corruption.at - passed
        passed += len(data)
        if corruption.kind == "none" or not 0 <= at < len(data):
            writer.write(data)
        elif corruption.kind == "flip":
            writer.write(data[:at] + bytes((data[at] ^ (corruption.byte or 1),)) + data[at + 1 :])
        elif corruption.kind == "insert":
            writer.write(data[:at] + bytes((corruption.byte,)) + data[at:])
        elif corruption.kind == "repeat":
            writer.write(data[:at] + data)
        else:
            writer.write(data[:at])
            await writer.drain()
            if corruption.kind == "stall":
                await asyncio.sleep(3600)  # the client's time-out ends this
            return
        await writer.drain()
