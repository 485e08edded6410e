"""How a measurement ends before its time: what it started is stopped, and what it wrote is removed.

Ctrl-C is that way by itself; `timeout`, a job's end and a cluster's scheduler send SIGTERM, which ends an interpreter
at once, with its folders and processes left behind.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType


def end_in_order() -> None:
    """Has SIGTERM end this process as an exit does, through everything that tidies up; a second one ends it at once."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(signum: int, _: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_DFL)
    sys.exit(128 + signum)
