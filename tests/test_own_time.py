"""Tests of the watch used for deadlines: it counts a process's own work and waits, but no queue for a processor."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.own_time import OwnTime

_NAP = 0.4


def test_sleeping_counts_as_own_time() -> None:
    took = OwnTime(os.getpid())
    time.sleep(_NAP)
    assert _NAP * 0.5 < took.seconds() < 60


async def test_a_process_that_keeps_sleeping_is_detected_and_one_that_ends_at_once_is_not() -> None:
    for nap in (0, 3 * _NAP):
        with subprocess.Popen(
            [sys.executable, "-S", "-c", f"import time; print(flush=True); time.sleep({nap})"], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            took = OwnTime(process.pid)
            async with asyncio.timeout(90):
                own = await took.until_ended()
        assert (own > _NAP) == (nap > _NAP)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel counts no waits for a processor")
def test_waiting_for_a_busy_processor_does_not_count_as_own_time() -> None:
    """Three busy processes are pinned to this process's processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(3)]
        try:
            took, began, spent = OwnTime(os.getpid()), time.monotonic(), time.thread_time()
            while time.thread_time() - spent < _NAP:
                pass
            passed, own = time.monotonic() - began, took.seconds()
        finally:
            for each in busy:
                each.kill()
                each.wait()
    finally:
        os.sched_setaffinity(0, before)
    assert passed > 2 * _NAP, "they were not on this processor"
    assert own < 0.75 * passed
