"""Lines of a task's output, and the batches in which a worker sends them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.wire.base import Identifier, Milliseconds, WireModel

MOST_SEQUENCE = 2**53 - 2
"""Maximum sequence number. It and its successor are exact as doubles, which Lua and many JSON parsers use."""
LONGEST_LINE = 8192
"""Maximum length of a log line, in characters."""
LINE_OVERHEAD = 100
"""Number of characters that a line takes in a batch in addition to its text."""
BATCH_LINES = 500
"""Maximum number of lines that a worker puts into a batch."""
BATCH_CHARACTERS = 200_000
"""Maximum number of characters that a worker puts into a batch. It fills a batch up to one of these two limits before
it sends another.
"""


class LogLine(WireModel):
    """One line of a task's output."""

    sequence: Annotated[int, Field(ge=0, le=MOST_SEQUENCE)]
    """Position in the assignment's log, from 0. A gap means that the worker dropped lines; a line with stream `worker`
    reports this.
    """
    time_ms: Milliseconds
    stream: Annotated[str, Field(pattern="^(stdout|stderr|worker)$", examples=["stdout"])]
    """Origin of the line: the task's standard output or error, or the worker itself."""
    text: Annotated[str, Field(max_length=LONGEST_LINE)]


class LogBatch(WireModel):
    """Body of `POST /v1/logs`, signed by the node."""

    assignment_id: Identifier
    lines: Annotated[tuple[LogLine, ...], Field(max_length=1000)]

    @property
    def has_room(self) -> bool:
        """Whether another line would have fitted into the batch.

        If so, the node had no further lines when it sent the batch.
        """
        size = sum(len(line.text) + LINE_OVERHEAD for line in self.lines)
        return len(self.lines) < BATCH_LINES and size + LONGEST_LINE + LINE_OVERHEAD <= BATCH_CHARACTERS


class LogReceipt(WireModel):
    """Answer to a batch of log lines."""

    next_sequence: Annotated[int, Field(ge=0)]
    """Sequence number of the next line to send. Lower ones are stored already."""
    wanted_until_ms: Milliseconds
    """Time until which the worker should push lines, because a client reads them; 0 to stop."""
