"""Progress of commands that take long, on standard error and at a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_AFTER_S = 2.0
"""Seconds after which a command shows that it works; shorter ones show nothing."""
_shown = threading.Lock()
"""Held by the block whose progress is shown, because a terminal can show one at a time."""


@contextmanager
def working(text: str) -> Iterator[None]:
    """Shows a text, a moving bar and the time that has passed while the block runs longer than two seconds.

    Within another such block, and without a terminal, it shows nothing.
    """
    if sys.stderr is None or not sys.stderr.isatty() or not _shown.acquire(blocking=False):
        yield
        return
    started: list[Progress] = []
    timer = threading.Timer(_AFTER_S, _start, (text, started))
    timer.daemon = True
    try:
        timer.start()
        yield
    finally:
        timer.cancel()
        timer.join()  # a display that is being started must not outlive the block
        for each in started:
            each.stop()
        _shown.release()


def _start(text: str, started: list[Progress]) -> None:
    from rich.console import Console  # noqa: PLC0415 - quick commands need no display
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TimeElapsedColumn())
    display = Progress(*columns, console=Console(stderr=True), transient=True)
    display.add_task(text, total=None)
    display.start()
    started.append(display)
