"""Ends a benchmark on SIGTERM so that its processes are stopped and its files removed.

Ctrl-C already raises an exception; `timeout`, the end of a job and a cluster's scheduler send SIGTERM, which by default
ends an interpreter at once and leaves its folders and processes behind.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType


def end_in_order() -> None:
    """Makes SIGTERM end this process like an exit, with all clean-up; a second SIGTERM ends it at once."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(signum: int, _: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_DFL)
    sys.exit(128 + signum)
