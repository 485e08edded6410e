"""Fixes the clock and the random numbers of a sandbox that runs the code of installed packages.

`begin` runs in the first process, after it has imported the modules of jobs, and `seed` runs in each job. So a job
gives the same result on every machine, also if the code reads the time or draws random numbers.
"""

from __future__ import annotations

import os
import random
import sys
from datetime import UTC, datetime
from random import Random

import time_machine

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def begin() -> None:
    """Stops the clock, and seeds the generators for the objects that the first process makes."""
    time_machine.travel(_NOW, tick=False).start()
    seed()


def seed() -> None:
    """Seeds the generators of `random` and NumPy, and replaces `os.urandom`, from which identifiers are drawn."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    os.urandom = Random(0).randbytes  # noqa: S311 - equal numbers are the purpose
