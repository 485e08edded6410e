"""Writer of a version through its origin: `write` returns when data is on disk; publishing follows in background."""

from __future__ import annotations

import asyncio
from pathlib import Path

from protocol.checkpoints import check_path
from protocol.runtime.threads import run_in_thread
from shardcast.disk import WRITE_BYTES
from shardcast.publish.publication import Publication, Published


class VersionWriter:
    """Writes files of a version, and publishes their full blocks in a background task.

    Args:
        folder: Folder for the files.
        publication: Publication of the version.
    """

    def __init__(self, folder: Path, publication: Publication) -> None:
        self.published: Published | None = None
        """Published version; available after the `async with` block."""
        self._folder = folder
        self._publication = publication
        self._grown: dict[str, int | None] = {}
        """Files with unpublished data, oldest first, and the final size of each, if known."""
        self._publishing: asyncio.Task[None] | None = None

    async def write(self, path: str, data: bytes | bytearray | memoryview, *, expected: int | None = None) -> None:
        """Appends to a file of the version; returns when the data is on disk, before it is published.

        Args:
            path: Path of the file in the version.
            data: Bytes to append.
            expected: Final size of the file, if known at the first call; readers then reserve the room at once.

        Raises:
            MusterError: Earlier data could not be published.
        """
        await run_in_thread(_append, self._folder / check_path(path), data)
        self._grown[path] = self._grown.get(path) if expected is None else expected
        if self._publishing is None or self._publishing.done():
            await self.catch_up()
            self._publishing = asyncio.create_task(self._publish())

    async def end(self, path: str) -> None:
        """Marks a file as complete; other files are completed with the version."""
        await self.catch_up()
        await self._publication.advance(path, ended=True)

    async def catch_up(self) -> None:
        """Returns when all full blocks are published.

        Raises:
            MusterError: They could not be published.
        """
        if self._publishing is not None:
            await asyncio.shield(self._publishing)

    async def stop(self) -> None:
        """Stops publishing."""
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
