"""What happens to files on their way while the pool has no object store: they wait, and say so."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import Unavailable
from worker.queue.item import QueueItem


class Undeliverable(Unavailable):
    """There is nowhere to deliver to at the moment."""

    code = "undeliverable"


class NoDelivery:
    """Keeps everything: the queue's stages begin when the pool offers a store."""

    async def request(self, item: QueueItem) -> Mapping[str, str]:
        """There is nobody to ask."""
        raise Undeliverable(f"the pool offers no store for {item.name} yet", hint="it is kept until there is one")

    async def put(self, item: QueueItem) -> Mapping[str, str]:
        """Never reached."""
        return await self.request(item)

    async def submit(self, item: QueueItem) -> Mapping[str, str]:
        """Never reached."""
        return await self.request(item)

    async def acknowledge(self, item: QueueItem) -> Mapping[str, str]:
        """Never reached."""
        return await self.request(item)
