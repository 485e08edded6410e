"""Wire models of requests and answers; one module per topic.

Every field is bounded. A service refuses unknown fields with an error: silently ignoring a misspelt limit would do more
harm. Times are Unix milliseconds, sizes bytes and durations seconds, unless the name of a field ends in another unit.

`wire.runs.RunView` imports the module `protocol.wire.runs` when it is first used. Clients of many routes name models
so, because a command needs those of one or two routes, and all together take 0.1 CPU seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.wire import assignments as assignments
    from protocol.wire import audits as audits
    from protocol.wire import base as base
    from protocol.wire import bridge as bridge
    from protocol.wire import events as events
    from protocol.wire import heartbeat as heartbeat
    from protocol.wire import identity as identity
    from protocol.wire import invites as invites
    from protocol.wire import joining as joining
    from protocol.wire import leases as leases
    from protocol.wire import listings as listings
    from protocol.wire import logs as logs
    from protocol.wire import mailbox as mailbox
    from protocol.wire import nodes as nodes
    from protocol.wire import pool as pool
    from protocol.wire import relayed as relayed
    from protocol.wire import relays as relays
    from protocol.wire import runs as runs
    from protocol.wire import slots as slots
    from protocol.wire import tasks as tasks
    from protocol.wire import uploads as uploads
    from protocol.wire import validators as validators


def __getattr__(name: str) -> object:
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
