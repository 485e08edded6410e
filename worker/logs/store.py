"""Local log store of a task: numbered lines in two rotating files of bounded size.

The lines of a container stay after the container was removed. `muster worker logs` shows them, and the worker pushes
them to the orchestrator on request.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, Any

from protocol.wire.logs import LogLine
from worker.runtime.interface import OutputLine
from worker.state import remove_tree

MOST_FILE_BYTES = 16 << 20
"""Maximum size of each of the two files, in bytes."""
_IN_MEMORY = 5000
"""Number of newest lines that are kept in memory."""
WORKER = "worker"
"""Name of the stream of the worker's own notes."""
_QUOTED_LINES = 8
"""Maximum number of lines in a quote."""
_QUOTED_CHARACTERS = 240
"""Maximum number of characters of a quoted line including escapes. A quote therefore has less than 2,000 characters."""
_ASSIGNMENT_ID = re.compile("[0-9a-f]{32}")
_KEPT_ASSIGNMENTS = 10
"""Number of newest assignments whose logs are kept."""


class LogStore:
    """The output of one assignment.

    It is thread-safe.

    Args:
        directory: Directory of this assignment's log; it is created if it is missing.
    """

    def __init__(self, directory: Path, *, most_file_bytes: int = MOST_FILE_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._current = directory / "current.jsonl"
        self._older = directory / "older.jsonl"
        self._most_file_bytes = most_file_bytes
        self._lock = threading.Lock()
        self._recent: deque[LogLine] = deque(maxlen=_IN_MEMORY)
        self._positions: dict[str, int] = {}
        self._next = 0
        for entry in self._entries():
            self._recent.append(_line(entry))
            self._next = entry["s"] + 1
            self._positions[entry["c"]] = max(entry["n"], self._positions.get(entry["c"], 0))
        _cut_torn_line(self._current)
        self._file: IO[bytes] = self._current.open("ab")

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next line."""
        return self._next

    def position(self, container: str) -> int:
        """Returns the runtime's timestamp, in nanoseconds, of a container's last stored line.

        The timestamp is 0 if no line is stored.
        """
        return self._positions.get(container, 0)

    def append(self, container: str, lines: Sequence[OutputLine]) -> None:
        """Stores output of a container."""
        with self._lock:
            for line in lines:
                self._write(container, line.time_ns, line.stream, line.text)
                self._positions[container] = line.time_ns
            self._file.flush()

    def note(self, text: str, *, now_ms: int) -> None:
        """Adds a note of the worker, for example why a container was stopped."""
        with self._lock:
            self._write("", now_ms * 1_000_000, WORKER, text[:8192])
            self._file.flush()

    def read(self, since: int, *, most: int = 1000) -> list[LogLine]:
        """Returns lines from number `since` on, at most `most`.

        Lines that rotation has deleted are missing.
        """
        with self._lock:
            if self._recent and self._recent[0].sequence <= since:
                found = [line for line in self._recent if line.sequence >= since]
                return found[:most]
            lines = (_line(entry) for entry in self._entries() if entry["s"] >= since)
            return [line for line, _ in zip(lines, range(most), strict=False)]

    def tail(self, count: int) -> list[LogLine]:
        """Returns the last `count` lines."""
        return self.read(max(0, self._next - count), most=count) if count > 0 else []

    def quote(self) -> str:
        """Returns the last lines that the task wrote after the worker's last note in the log.

        The result is bounded, and control characters are escaped.

        Heartbeats of a failed task contain these lines, so that the pool's owner sees the cause together with the
        failure.
        """
        with self._lock:
            newest = list(islice(reversed(self._recent), _QUOTED_LINES))
        since_note = reversed(list(takewhile(lambda line: line.stream != WORKER, newest)))
        written = (_escaped(line.text) for line in since_note)
        return "\n".join(line for line in written if line)

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._file.close()

    def _write(self, container: str, time_ns: int, stream: str, text: str) -> None:
        entry = {"s": self._next, "n": time_ns, "c": container, "o": stream, "x": text}
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._recent.append(_line(entry))
        self._next += 1
        if self._file.tell() > self._most_file_bytes:
            self._file.close()
            self._current.replace(self._older)
            self._file = self._current.open("ab")

    def _entries(self) -> Iterator[dict[str, Any]]:
        for path in (self._older, self._current):
            if not path.exists():
                continue
            with path.open("rb") as file:
                for line in file:
                    try:
                        yield json.loads(line)
                    except ValueError:  # a line that a crash cut short
                        continue


def open_kept(logs: Path, assignment_id: str) -> LogStore | None:
    """Opens the log of an earlier assignment; returns None if it is not stored.

    The id comes from the orchestrator, so its format is checked first. Otherwise an id such as `/etc` or `..` would
    open a directory outside `logs`.
    """
    if _ASSIGNMENT_ID.fullmatch(assignment_id) is None or not (logs / assignment_id).is_dir():
        return None
    return LogStore(logs / assignment_id)


def remove_old_logs(logs: Path, *, keep: str) -> None:
    """Removes the logs of all assignments except `keep` and the newest ones."""
    places = sorted((place for place in logs.iterdir() if place.is_dir()), key=lambda place: place.stat().st_mtime)
    for place in places[:-_KEPT_ASSIGNMENTS]:
        if place.name != keep:
            remove_tree(place)


def _escaped(text: str) -> str:
    """Returns a line with non-printable characters escaped, cut to the maximum length."""
    line = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in text[:_QUOTED_CHARACTERS].strip().replace("\t", " ")
    )
    return line if max(len(line), len(text)) <= _QUOTED_CHARACTERS else f"{line[:_QUOTED_CHARACTERS]}…"


def _line(entry: dict[str, Any]) -> LogLine:
    return LogLine(sequence=entry["s"], time_ms=entry["n"] // 1_000_000, stream=entry["o"], text=entry["x"][:8192])


def _cut_torn_line(path: Path) -> None:
    """Terminates a line that a crash cut short, so that no other line is appended to it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, 2)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
