"""Times from files: arrival of work in the store, of versions at nodes, and the trainer's progress log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from protocol.errors import MusterError
from protocol.identifiers import Digest, digest
from protocol.runtime.clock import Clock

_LOOK = timedelta(milliseconds=100)


class ArrivalWatch:
    """Sees versions appear on the nodes' disks; they remove old ones, so it has to be looked at as they come.

    Args:
        shared: The shared volume of each node, by its name.
        clock: Whose time counts.
    """

    def __init__(self, shared: Mapping[str, Path], *, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self.seen: dict[Digest, dict[str, float]] = {}
        """By version digest: when each node had it whole, Unix time in seconds."""

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            self.look()
            await self._clock.sleep(_LOOK)

    def look(self) -> None:
        """Takes note of what is there now."""
        now = self._clock.now().timestamp()
        for name, volume in self._shared.items():
            for version in _versions(volume / "checkpoints"):
                self.seen.setdefault(version, {}).setdefault(name, now)


def _versions(folder: Path) -> Iterator[Digest]:
    """Complete versions only; partial ones have other names."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return
    for name in names:
        try:
            yield digest(name)
        except (MusterError, ValueError):
            continue


def stored_at(objects: Path) -> dict[Digest, float]:
    """Returns the arrival time of each object in the local store by SHA-256, Unix s."""
    found: dict[Digest, float] = {}
    for path in objects.rglob("*"):
        if len(path.name) == 64 and path.is_file():
            found[digest(f"0x{path.name}")] = path.stat().st_mtime
    return found


def read_progress(path: Path) -> list[dict[str, Any]]:
    """The lines of the trainer's `progress.jsonl`; a line that is being written is left out."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines
