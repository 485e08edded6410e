"""Writer for programs that write a version through `Origin.publish`.

While the program writes, a background task publishes full blocks. Muster's own trainer does not use this writer. It
writes complete folders (`trainer.run.publishing.folders`), and `shardcast.folder_watcher` publishes them.
"""

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
        folder: Folder for the version's files.
        publication: The version's publication, which hashes and announces blocks.
    """

    def __init__(self, folder: Path, publication: Publication) -> None:
        self.published: Published | None = None
        """Summary of the complete version; None before the end of the `async with` block."""
        self._folder = folder
        self._publication = publication
        self._grown: dict[str, int | None] = {}
        """Final size, if known, of each file with unpublished data, by path; the file written first comes first."""
        self._publishing: asyncio.Task[None] | None = None

    async def write(self, path: str, data: bytes | bytearray | memoryview, *, expected: int | None = None) -> None:
        """Appends to a file of the version.

        Returns when the data is written to the file, and does not wait for its publication.

        Args:
            path: Path of the file in the version.
            data: Bytes to append.
            expected: Final size of the file in bytes, if known at the first call; readers then reserve the disk space
                at once.

        Raises:
            MusterError: The background task failed to publish earlier data.
        """
        await run_in_thread(_append, self._folder / check_path(path), data)
        self._grown[path] = self._grown.get(path) if expected is None else expected
        if self._publishing is None or self._publishing.done():
            await self.catch_up()
            self._publishing = asyncio.create_task(self._publish())

    async def end(self, path: str) -> None:
        """Publishes the end of a file.

        Files that were not ended in this way end when the version ends.
        """
        await self.catch_up()
        await self._publication.advance(path, ended=True)

    async def catch_up(self) -> None:
        """Waits until all full blocks written so far are published.

        Raises:
            MusterError: The background task failed to publish these blocks.
        """
        if self._publishing is not None:
            await asyncio.shield(self._publishing)

    async def stop(self) -> None:
        """Cancels the background task that publishes blocks."""
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
