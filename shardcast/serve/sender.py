"""Sends ranges of a file by `sendfile`, in batches whose size adapts to the speed of the reader."""

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
"""Blocks per `sendfile` at first and for a slow reader, which must take that many within the time-out.

The time-out grows with the batch, so a larger one demands no higher speed of a reader.
"""

MOST_BLOCKS = 16
"""Blocks per `sendfile` for a fast reader: the whole request, as each call costs about as much as a block."""

QUICK_S = 0.1
"""Seconds within which a reader has to take a batch for the next one to be larger."""


class BatchSize:
    """Blocks per `sendfile`: doubled while the reader takes them quickly, else halved."""

    def __init__(self) -> None:
        self.blocks = LEAST_BLOCKS

    def record(self, seconds: float) -> None:
        """Records how long the reader took for the last batch."""
        if seconds < QUICK_S:
            self.blocks = min(2 * self.blocks, MOST_BLOCKS)
        else:
            self.blocks = max(self.blocks // 2, LEAST_BLOCKS)


class RangeSender:
    """Sends ranges of files, each block as soon as it is present.

    Args:
        timeout: Longest wait for a block to arrive, or for a reader to take `LEAST_BLOCKS`.
        sent: Called with the bytes of each batch.
    """

    def __init__(self, *, timeout: timedelta, sent: Callable[[float], None]) -> None:
        self._timeout = timeout
        self.sent = sent
        self._batches: WeakKeyDictionary[asyncio.Transport, BatchSize] = WeakKeyDictionary()
        """By connection: a reader keeps its batch size from one request to the next."""

    async def wait(self, local: LocalVersion, file: int, block: int) -> None:
        """Returns when a block is present.

        Raises:
            TimeoutError: It did not arrive in time.
            VersionGone: The version was removed.
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
            TimeoutError: A block did not arrive, or the reader took fewer than `LEAST_BLOCKS` within the time-out.
            VersionGone: The version was removed meanwhile.
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
        except TypeError:  # uvloop's TLS transport takes no weak reference; each request starts with the least
            return BatchSize()


async def _send_batch(request: web.Request, response: web.StreamResponse, file: FileIO, at: int, size: int) -> None:
    """Sends a part of a file, by `sendfile` where the event loop has it."""
    if request.transport is None:
        raise ConnectionResetError("the reader closed the connection")
    loop = asyncio.get_running_loop()
    os.posix_fadvise(
        file.fileno(), at, size, os.POSIX_FADV_WILLNEED
    )  # lets the kernel read ahead, so that `sendfile` need not wait for the disk
    try:
        await loop.sendfile(request.transport, file, at, size)
    except NotImplementedError:  # uvloop has no sendfile
        for start in range(at, at + size, BLOCK):
            length = min(BLOCK, at + size - start)
            await response.write(await run_in_thread(os.pread, file.fileno(), length, start))
