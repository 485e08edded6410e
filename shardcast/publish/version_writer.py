"""A version that a trainer writes through its origin: on disk when `write` returns, and published behind its back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from protocol.checkpoints import check_path
from shardcast.disk import WRITE_BYTES
from shardcast.publish.publication import Publication, Published


class VersionWriter:
    """A version that is being written through the origin: what is whole of it is published behind the writer's back.

    Args:
        folder: Where its files are written.
        publication: How they leave.
    """

    def __init__(self, folder: Path, publication: Publication) -> None:
        self.published: Published | None = None
        """Published version; available after the `async with` block."""
        self._folder = folder
        self._publication = publication
        self._grown: dict[str, int | None] = {}
        """Files with news, in the order of their first; with the size that they will have."""
        self._publishing: asyncio.Task[None] | None = None

    async def write(self, path: str, data: bytes | bytearray | memoryview, *, expected: int | None = None) -> None:
        """Adds to a file of the version; returns when it is written. It is published as soon as it is hashed.

        Args:
            path: Of the file, in the version.
            data: What to add at its end.
            expected: Bytes the file will have, if known; said at the first call, readers reserve the room at once.

        Raises:
            MusterError: What was written before could not be published.
        """
        await asyncio.to_thread(_append, self._folder / check_path(path), data)
        self._grown[path] = self._grown.get(path) if expected is None else expected
        if self._publishing is None or self._publishing.done():
            await self.catch_up()
            self._publishing = asyncio.create_task(self._publish())

    async def end(self, path: str) -> None:
        """Marks a file as complete; unmarked ones end with the version."""
        await self.catch_up()
        await self._publication.advance(path, ended=True)

    async def catch_up(self) -> None:
        """Returns when all that is whole is published.

        Raises:
            MusterError: It could not be.
        """
        if self._publishing is not None:
            await asyncio.shield(self._publishing)

    async def stop(self) -> None:
        """Publishes nothing more."""
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)

    async def _publish(self) -> None:
        while self._grown:
            path = next(iter(self._grown))
            await self._publication.advance(path, expected=self._grown.pop(path))


def _append(path: Path, data: bytes | bytearray | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        view = memoryview(data).cast("B")
        while view:
            view = view[file.write(view[:WRITE_BYTES]) :]
