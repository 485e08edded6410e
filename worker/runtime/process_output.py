"""Reads the output files that a keeper writes: JSON lines with time, stream and text."""

from __future__ import annotations

import json
from pathlib import Path

from worker.runtime.interface import OutputLine


class OutputReader:
    """Reads a keeper's output in steps of 1 MiB, across the rotation of its files.

    Args:
        place: Directory of the task.
        after_ns: Time in nanoseconds; lines up to this time are skipped.
    """

    def __init__(self, place: Path, after_ns: int) -> None:
        self._current = place / "output.jsonl"
        self._older = place / "output.1.jsonl"
        self._last_ns = after_ns
        self._inode = -1
        self._position = 0

    def read(self) -> list[OutputLine]:
        """Returns the next lines; empty if there are none yet."""
        try:
            inode = self._current.stat().st_ino
        except FileNotFoundError:
            return []
        found: list[OutputLine] = []
        if inode != self._inode:
            position = 0
            while end := self._read_from(self._older, position, found):
                position = end
            self._inode, self._position = inode, 0
        while not found and (end := self._read_from(self._current, self._position, found)):
            self._position = end
        return found

    def _read_from(self, path: Path, position: int, found: list[OutputLine]) -> int:
        """Appends the new lines after `position` to `found`; returns the position of their end.

        An incomplete last line is not read. Returns 0 if there is no complete line.
        """
        try:
            with path.open("rb") as file:
                file.seek(position)
                data = file.read(1 << 20)
        except FileNotFoundError:
            return 0
        complete = data[: data.rfind(b"\n") + 1]
        for line in complete.splitlines():
            time_ns, stream, text = json.loads(line)
            if time_ns > self._last_ns:
                self._last_ns = time_ns
                found.append(OutputLine(time_ns=time_ns, stream=stream, text=text))
        return position + len(complete) if complete else 0
