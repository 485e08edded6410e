"""A proxy that cuts a Redis connection at a chosen point: before a command arrives, or before its reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

import hiredis

Command = tuple[bytes, ...]


class Cut(Enum):
    """Where the line breaks."""

    BEFORE = auto()
    """The command never reaches Redis."""
    AFTER = auto()
    """Redis executes the command, and the reply is lost."""


@dataclass
class CutLine:
    """What the line does, and what came over it.

    Args:
        url: Where to connect instead of to Redis.
        seen: Every command that came, in order, also the one at which the line was cut.
        reads: Pieces in which they came.
        at: Which of the next commands it is cut at, counted from 0; never, if negative.
        cut: On which side of Redis.
    """

    url: str
    seen: list[Command] = field(default_factory=list)
    reads: int = 0
    at: int = -1
    cut: Cut = Cut.BEFORE

    def break_at(self, at: int, cut: Cut) -> None:
        """Cuts the line once, at the command that comes after `at` others from now on."""
        self.at, self.cut = at, cut

    def _breaks(self, command: Command) -> bool:
        self.seen.append(command)
        self.at -= 1
        return self.at == -1


@contextlib.asynccontextmanager
async def cut_line(redis_url: str, folder: Path) -> AsyncIterator[CutLine]:
    """Runs the line between clients and the Redis at a unix socket."""
    path = folder / "cut"
    line = CutLine(f"unix://{path}")
    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        upstream, downstream = await asyncio.open_unix_connection(redis_url.removeprefix("unix://"))
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await _carry(line, reader, writer, upstream, downstream)
        writer.close()
        downstream.close()
        served.discard(task)

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield line
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


async def _carry(
    line: CutLine,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream: asyncio.StreamReader,
    downstream: asyncio.StreamWriter,
) -> None:
    """One command, its answer, the next command; so that it is known which commands Redis has carried out."""
    commands, answers = hiredis.Reader(), hiredis.Reader()
    while data := await reader.read(65536):
        line.reads += 1
        commands.feed(data)
        while (command := commands.gets()) is not False:
            breaks = line._breaks(tuple(command))
            if breaks and line.cut is Cut.BEFORE:
                return
            downstream.write(hiredis.pack_command(tuple(command)))
            raw = b""
            while answers.gets() is False:
                piece = await upstream.read(65536)
                if not piece:
                    return
                raw += piece
                answers.feed(piece)
            if breaks:
                return
            writer.write(raw)
