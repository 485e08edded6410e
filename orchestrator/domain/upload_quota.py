"""Upload quota of a node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Upload quota of one node.

    Args:
        window: Time over which files and bytes are counted.
        files: Maximum files per window.
        bytes: Maximum bytes per window.
        other_bytes: Maximum bytes per window of files that are not the work of a lease; part of `bytes`.
        open: Maximum open upload tickets at a time.
    """

    window: timedelta = timedelta(hours=1)
    files: int = 1000
    bytes: int = 50 << 30
    other_bytes: int = 1 << 30
    open: int = 32
