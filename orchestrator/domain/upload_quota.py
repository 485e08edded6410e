"""Upload quota of a node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Upload quota of one node.

    Args:
        window: In which files and bytes are counted.
        files: Per window.
        bytes: Per window.
        other_bytes: Of these, of files that are not the work of a lease.
        open: Tickets at a time.
    """

    window: timedelta = timedelta(hours=1)
    files: int = 1000
    bytes: int = 50 << 30
    other_bytes: int = 1 << 30
    open: int = 32
