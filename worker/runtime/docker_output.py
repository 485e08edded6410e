"""Parses the Docker engine's log stream.

The stream consists of frames with an eight-byte header. Frames contain lines with timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from worker.runtime.interface import OutputLine

MOST_LINE_BYTES = 8192
"""Maximum length of a log line that is sent to the orchestrator, in bytes. Longer lines are split."""

_HEADER = 8
"""Length of a frame's header, in bytes."""
_STREAMS = {1: "stdout", 2: "stderr"}
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d) ")
_MOST_BUFFERED = 1 << 20
"""Number of bytes without a line end after which the parser treats these bytes as a line."""


class OutputParser:
    """Converts the bytes of a log stream to lines, as they arrive.

    Data without a timestamp is ignored.
    """

    def __init__(self) -> None:
        self._frames = bytearray()
        self._partial: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def feed(self, chunk: bytes) -> Iterator[OutputLine]:
        """Yields the lines that this chunk completes."""
        self._frames += chunk
        while len(self._frames) >= _HEADER:
            size = int.from_bytes(self._frames[4:_HEADER], "big")
            if len(self._frames) < _HEADER + size:
                return
            stream = _STREAMS.get(self._frames[0])
            payload = bytes(self._frames[_HEADER : _HEADER + size])
            del self._frames[: _HEADER + size]
            if stream is not None:
                yield from self._lines(stream, payload)

    def end(self) -> Iterator[OutputLine]:
        """Yields the remaining data that has no line end."""
        for stream, partial in self._partial.items():
            if partial:
                yield from self._line(stream, bytes(partial))
                partial.clear()

    def _lines(self, stream: str, payload: bytes) -> Iterator[OutputLine]:
        """Splits the payload of a frame into lines.

        Data that is too long without a line end becomes a line of its own.
        """
        partial = self._partial[stream]
        partial += payload
        *complete, rest = bytes(partial).split(b"\n")
        partial.clear()
        partial += rest
        for line in complete:
            yield from self._line(stream, line)
        if len(partial) > _MOST_BUFFERED:
            yield from self._line(stream, bytes(partial))
            partial.clear()

    def _line(self, stream: str, line: bytes) -> Iterator[OutputLine]:
        stamp = _STAMP.match(line)
        if stamp is None:
            return
        base = datetime.fromisoformat(stamp[1].decode()).replace(tzinfo=UTC)
        time_ns = int(base.timestamp()) * 1_000_000_000 + int((stamp[2] or b"0").ljust(9, b"0"))
        text = line[stamp.end() :].rstrip(b"\r")
        for start in range(0, max(1, len(text)), MOST_LINE_BYTES):
            yield OutputLine(
                time_ns=time_ns, stream=stream, text=text[start : start + MOST_LINE_BYTES].decode(errors="replace")
            )
