"""A machine that sends something else than its task made, or nothing, and submits it all the same."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from protocol.wire.uploads import UploadTicket
from worker.delivery import PoolDelivery
from worker.queue.item import QueueItem


class SwappedUpload(PoolDelivery):
    """Signs one file and uploads another of its size, to decide later which of them it was."""

    async def _send(self, item: QueueItem, ticket: UploadTicket) -> None:
        _, transfer = self._connected()
        with TemporaryDirectory() as home:
            other = Path(home) / "other"
            other.write_bytes(os.urandom(item.size))
            await transfer.put(ticket, other, size=item.size)


class NoUpload(PoolDelivery):
    """Submits files that it never uploads: nobody can say what is in them."""

    async def _send(self, item: QueueItem, ticket: UploadTicket) -> None:
        """Says that it is done."""
