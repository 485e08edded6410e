"""A moment by which all jobs of a thread have to end, whatever their own limits allow.

Environments set the limits of single jobs; a validator that scores a whole file bounds all of them together. The moment
is bound to the thread's context, so environments need no parameter for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_latest: ContextVar[float] = ContextVar("latest", default=math.inf)


@contextmanager
def jobs_end_by(moment: float) -> Iterator[None]:
    """Ends jobs that are started within at this moment; they end as out of time, which leaves a score undecided.

    Args:
        moment: On `time.monotonic`, in seconds. Of two that are nested the earlier one counts.
    """
    token = _latest.set(min(moment, _latest.get()))
    try:
        yield
    finally:
        _latest.reset(token)


def latest_end() -> float:
    """The moment on `time.monotonic` by which a job that starts now has to end; infinity if there is none."""
    return _latest.get()
