"""Sends ranges of a file by `sendfile`, in batches whose size adapts to the reader's speed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from io import FileIO
from weakref import WeakKeyDictionary

from aiohttp import web

from protocol.runtime.threads import run_in_thread
from shardcast.local_version import LocalVersion
from shardcast.manifest.records import BLOCK

LEAST_BLOCKS = 4
"""Number of blocks per `sendfile` call for a new or slow reader, which must take the blocks within the time-out.

For larger batches the time-out grows in proportion, so that a larger batch requires no faster reader.
"""

MOST_BLOCKS = 16
"""Maximum number of blocks per `sendfile` call, for a fast reader. Muster's clients request as many blocks at a time.
Fewer calls are better, because the overhead of one call is about the cost of sending a block."""

QUICK_S = 0.1
"""Seconds within which a reader must take a batch, so that the next batch is twice as large."""


class BatchSize:
    """Number of blocks per `sendfile` call for one reader.

    The number doubles after a quick batch, and halves after a slow one.
    """

    def __init__(self) -> None:
        self.blocks = LEAST_BLOCKS

    def record(self, seconds: float) -> None:
        """Adapts the size to the number of seconds that the reader took for the last batch."""
        if seconds < QUICK_S:
            self.blocks = min(2 * self.blocks, MOST_BLOCKS)
        else:
            self.blocks = max(self.blocks // 2, LEAST_BLOCKS)


class RangeSender:
    """Sends ranges of files to readers, each block as soon as it is present.

    Args:
        timeout: Longest time to wait for a block to arrive here, or for a reader to take `LEAST_BLOCKS` blocks.
        sent: Called after each batch with its number of bytes.
    """

    def __init__(self, *, timeout: timedelta, sent: Callable[[float], None]) -> None:
        self._timeout = timeout
        self.sent = sent
        self._batches: WeakKeyDictionary[asyncio.Transport, BatchSize] = WeakKeyDictionary()
        """Batch size of each connection, which is kept from one request to the next."""

    async def wait(self, local: LocalVersion, file: int, block: int) -> None:
        """Waits until a block is present.

        Raises:
            TimeoutError: The block did not arrive within the time-out.
            VersionGone: The version was removed, or replaced by a newer attempt.
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
        """Sends a range of a file's bytes.

        Args:
            request: The reader's request.
            response: The response, whose headers were sent.
            local: The version.
            file: Index of the file.
            span: Offsets of the first and the last byte to send.

        Raises:
            TimeoutError: A block did not arrive, or the reader took too few bytes, within the time-out.
            VersionGone: The version was removed, or replaced by a newer attempt.
            OSError: The reader closed the connection.
        """
        loop = asyncio.get_running_loop()
        batch = self._batch_of(request.transport)
        at, last = span
        with local.path(file).open("rb", buffering=0) as source:
            while at <= last:
                block = at // BLOCK
                await self.wait(local, file, block)
                run = local.count_present(file, block, batch.blocks)
                size = min((block + run) * BLOCK, last + 1) - at
                began = loop.time()
                async with asyncio.timeout(self._timeout.total_seconds() * max(1.0, size / (LEAST_BLOCKS * BLOCK))):
                    await _send_batch(request, response, source, at, size)
                batch.record(loop.time() - began)
                self.sent(size)
                at += size

    def _batch_of(self, connection: asyncio.Transport | None) -> BatchSize:
        if connection is None:
            return BatchSize()
        try:
            return self._batches.setdefault(connection, BatchSize())
        except TypeError:
            # uvloop's TLS transport supports no weak references, so the size can't be kept between the requests of a
            # TLS connection.
            return BatchSize()


async def _send_batch(request: web.Request, response: web.StreamResponse, file: FileIO, at: int, size: int) -> None:
    """Sends a part of a file, by `sendfile` if the event loop supports it."""
    if request.transport is None:
        raise ConnectionResetError("the reader closed the connection")
    loop = asyncio.get_running_loop()
    # The kernel reads the whole batch ahead, so that `sendfile` need not wait for the disk.
    os.posix_fadvise(file.fileno(), at, size, os.POSIX_FADV_WILLNEED)
    try:
        await loop.sendfile(request.transport, file, at, size)
    except NotImplementedError:  # uvloop has no sendfile
        for start in range(at, at + size, BLOCK):
            length = min(BLOCK, at + size - start)
            await response.write(await run_in_thread(os.pread, file.fileno(), length, start))
