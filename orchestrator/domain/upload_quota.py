"""Upload quota of a node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Upload quota of one node.

    Args:
        window: Time over which files and bytes are counted.
        files: Maximum number of files per window.
        bytes: Maximum number of bytes per window.
        other_bytes: Maximum number of bytes per window in files that are not the work of a lease; part of `bytes`.
        open: Maximum number of upload tickets that are open at the same time.
    """

    window: timedelta = timedelta(hours=1)
    files: int = 1000
    bytes: int = 50 << 30
    other_bytes: int = 1 << 30
    open: int = 32
