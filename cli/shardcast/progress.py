"""Progress display of `muster shardcast`: one bar per version in transfer, at a terminal only."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from cli.output.quantities import format_size
from shardcast.download.download import DownloadProgress as FetchProgress
from shardcast.serve.server import Server
from shardcast.serve.version_index import VersionIndex

_EVERY_S = 0.25


class Bars:
    """Shows progress bars on standard error while the context is entered; shows nothing without a terminal.

    Args:
        versions: Index of the versions to show; with None, the bars show the downloads passed to `fetching`.
        doing: Label of the counted bytes, such as `held`.
    """

    def __init__(self, versions: VersionIndex | None = None, *, doing: str = "verified") -> None:
        console = Console(stderr=True)
        self._versions = versions
        self._bars: dict[int, TaskID] = {}
        self._progress = Progress(
            TextColumn("version {task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TextColumn(doing),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            refresh_per_second=1 / _EVERY_S,
        )
        self._polling: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        if self._versions is not None and not self._progress.disable:
            self._polling = asyncio.get_running_loop().create_task(self._poll(self._versions))
        return self

    def __exit__(self, *_: object) -> None:
        if self._polling is not None:
            self._polling.cancel()
        self._progress.stop()

    def fetching(self, progress: FetchProgress) -> None:
        """Updates the bar of a fetch; called after each block."""
        # While a version grows, its final size is unknown; the bar shows the announced size.
        self._show(progress.version, progress.done, progress.announced, growing=not progress.sealed)

    async def _poll(self, versions: VersionIndex) -> None:
        while True:
            for local in versions:
                manifest = local.manifest
                whole = manifest.sealed and local.present_bytes >= manifest.size
                if not whole or manifest.key.version in self._bars:
                    self._show(manifest.key.version, local.present_bytes, manifest.size, growing=not manifest.sealed)
            await asyncio.sleep(_EVERY_S)

    def _show(self, version: int, done: int, size: int, *, growing: bool) -> None:
        if self._progress.disable:
            return
        if version not in self._bars:
            self._bars[version] = self._progress.add_task(str(version), total=None)
        self._progress.update(self._bars[version], completed=done, total=None if growing else size)


def served_bytes(server: Server) -> str:
    """Returns, as text with a unit, how many bytes a server sent; for its last line."""
    sent = sum(
        sample.value
        for metric in server.metrics.sent.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    )
    return format_size(int(sent))


async def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Runs a service until SIGINT or SIGTERM; then cancels its work and returns normally."""
    loop = asyncio.get_running_loop()
    running = loop.create_task(work)
    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        if not running.cancelled():
            raise
    finally:
        for which in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(which)
