"""Bytes of a file on their way to one reader: handed to the kernel, as many at a time as the reader takes at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from io import FileIO
from weakref import WeakKeyDictionary

from aiohttp import web

from shardcast.local_version import LocalVersion
from shardcast.manifest.records import BLOCK

LEAST_BLOCKS = 4
"""Blocks handed to the kernel at a time, at first and to a slow reader: it has to take that much within a patience.

Of more it has to take no more than that: the first blocks are with the kernel at once, however slow the reader is.
"""

MOST_BLOCKS = 16
"""Maximum for a fast reader: all requested blocks, since each hand-over costs about as much as a block."""

QUICK_S = 0.1
"""Seconds in which a reader that may have more at a time takes what it was given."""


class Strides:
    """Number of blocks per hand-over: doubled while the reader takes them at once, else halved."""

    def __init__(self) -> None:
        self.blocks = LEAST_BLOCKS

    def note(self, seconds: float) -> None:
        """It took so long to take what it was given."""
        if seconds < QUICK_S:
            self.blocks = min(2 * self.blocks, MOST_BLOCKS)
        else:
            self.blocks = max(self.blocks // 2, LEAST_BLOCKS)


class RangeSender:
    """Sends ranges of files, each block as soon as it is here.

    Args:
        patience: How long a block may not be here, or a reader may take nothing.
        sent: Told the bytes of each hand-over.
    """

    def __init__(self, *, timeout: timedelta, sent: Callable[[float], None]) -> None:
        self._timeout = timeout
        self.sent = sent
        self._strides: WeakKeyDictionary[asyncio.Transport, Strides] = WeakKeyDictionary()
        """By connection, which is kept from one request to the next."""

    async def wait(self, local: LocalVersion, file: int, block: int) -> None:
        """Returns when a block is here.

        Raises:
            TimeoutError: It did not come in time.
            VersionGone: It will not come.
        """
        if not local.has(file, block):
            async with asyncio.timeout(self._timeout.total_seconds()):
                await local.wait_for_block(file, block)

    async def send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        local: LocalVersion,
        *,
        file: int,
        span: tuple[int, int],
    ) -> None:
        """Sends a file's bytes from the first to the last of a span.

        Raises:
            TimeoutError: A block did not come, or the reader took less than `LEAST_BLOCKS` in a patience.
            VersionGone: The version was let go meanwhile.
            OSError: The reader left.
        """
        loop = asyncio.get_running_loop()
        strides = self._strides_of(request.transport)
        at, last = span
        with local.path(file).open("rb", buffering=0) as source:
            while at <= last:
                block = at // BLOCK
                await self.wait(local, file, block)
                run = local.count_present(file, block, strides.blocks)
                size = min((block + run) * BLOCK, last + 1) - at
                began = loop.time()
                async with asyncio.timeout(self._timeout.total_seconds() * max(1.0, size / (LEAST_BLOCKS * BLOCK))):
                    await _hand_over(request, response, source, at, size)
                strides.note(loop.time() - began)
                self.sent(size)
                at += size

    def _strides_of(self, connection: asyncio.Transport | None) -> Strides:
        if connection is None:
            return Strides()
        try:
            return self._strides.setdefault(connection, Strides())
        except TypeError:  # uvloop's over TLS takes no weak reference: each request begins anew
            return Strides()


async def _hand_over(request: web.Request, response: web.StreamResponse, file: FileIO, at: int, size: int) -> None:
    """Sends a part of a file, by the kernel where that is possible."""
    if request.transport is None:
        raise ConnectionResetError("the caller left")
    loop = asyncio.get_running_loop()
    os.posix_fadvise(file.fileno(), at, size, os.POSIX_FADV_WILLNEED)  # so that sending does not wait for a disk
    try:
        await loop.sendfile(request.transport, file, at, size)
    except NotImplementedError:  # by uvloop
        for start in range(at, at + size, BLOCK):
            length = min(BLOCK, at + size - start)
            await response.write(await loop.run_in_executor(None, os.pread, file.fileno(), length, start))
