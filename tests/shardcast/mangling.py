"""A proxy that spoils answers at byte level: flips, cuts, repeats and inserts at chosen places."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self


@dataclass(frozen=True, slots=True)
class Spoiling:
    """The changes to one connection's answers."""

    kind: Literal["none", "flip", "cut", "insert", "repeat", "stall"]
    at: int
    """Bytes of the answers before the change."""
    byte: int = 0


class ManglingProxy:
    """Forwards connections; spoils the n-th one as the n-th entry says, and later ones not at all."""

    def __init__(self, host: str, port: int, spoilings: list[Spoiling]) -> None:
        self.url = ""
        self._target = (host, port)
        self._spoilings = list(spoilings)
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
        spoiling = self._spoilings.pop(0) if self._spoilings else Spoiling("none", 0)
        try:
            from_origin, to_origin = await asyncio.open_connection(*self._target)
            forward = asyncio.create_task(_pump(reader, to_origin))
            try:
                await _spoil(from_origin, writer, spoiling)
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


async def _spoil(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, spoiling: Spoiling) -> None:
    passed = 0
    while data := await reader.read(1 << 16):
        at = spoiling.at - passed
        passed += len(data)
        if spoiling.kind == "none" or not 0 <= at < len(data):
            writer.write(data)
        elif spoiling.kind == "flip":
            writer.write(data[:at] + bytes((data[at] ^ (spoiling.byte or 1),)) + data[at + 1 :])
        elif spoiling.kind == "insert":
            writer.write(data[:at] + bytes((spoiling.byte,)) + data[at:])
        elif spoiling.kind == "repeat":
            writer.write(data[:at] + data)
        else:
            writer.write(data[:at])
            await writer.drain()
            if spoiling.kind == "stall":
                await asyncio.sleep(3600)  # until the waiting client gives up
            return
        await writer.drain()
