"""A common deadline of all jobs of a thread, in addition to the jobs' own limits.

Environments set the limits of single jobs. A validator that scores a whole file also bounds the time of all jobs
together. The deadline is a context variable, so environments need no parameter for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_latest: ContextVar[float] = ContextVar("latest", default=math.inf)


@contextmanager
def jobs_end_by(moment: float) -> Iterator[None]:
    """Ends jobs of the context at the given moment; their scores are then undecided.

    Args:
        moment: Time of `time.monotonic`, in seconds. In nested contexts, the earliest moment applies.
    """
    token = _latest.set(min(moment, _latest.get()))
    try:
        yield
    finally:
        _latest.reset(token)


def latest_end() -> float:
    """Returns the deadline of jobs that start now, as a time of `time.monotonic`; infinity if there is none."""
    return _latest.get()
