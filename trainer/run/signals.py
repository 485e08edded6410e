"""Handles Ctrl-C and SIGTERM: the first signal requests a stop, the second one ends the process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.runtime.logs import get_logger

_log = get_logger(__name__)


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Sets the event at the first Ctrl-C or SIGTERM; a second one has the default effect."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def request_stop() -> None:
        _log.info("stopping", hint="a second signal ends the process at once; no completed step is lost")
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for each in signals:
        loop.add_signal_handler(each, request_stop)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
