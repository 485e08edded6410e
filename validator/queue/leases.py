"""Queue items that this process holds, from taking to settling."""

from __future__ import annotations

import structlog

from validator.domain.items import Item, ItemId
from validator.queue.store import WorkQueue

_log = structlog.get_logger(__name__)


class HeldItems:
    """Renews the leases of everything that is worked on here, in one round trip.

    Args:
        queue: Where it was taken from.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._held: dict[ItemId, Item] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, item: Item) -> None:
        """We have it."""
        self._held[item.id] = item

    def remove(self, item: Item) -> None:
        """We have it no more."""
        held = self._held.get(item.id)
        if held is not None and held.token == item.token:
            del self._held[item.id]

    async def renew(self) -> None:
        """Renews every lease; one that is lost is somebody else's, and what we write of it is refused.

        Raises:
            StoreUnavailable: Redis can't be asked.
        """
        for name in await self._queue.keep({name: item.token for name, item in self._held.items()}):
            if self._held.pop(name, None) is not None:
                _log.warning("lease-lost", item=name)

    async def give_back(self) -> None:
        """Lets others have everything at once, when the service stops."""
        for item in list(self._held.values()):
            self.remove(item)
            await self._queue.give_back(item)
