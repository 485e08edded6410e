"""A deadline by which all jobs end, whatever their own limits allow."""

from __future__ import annotations

import math
import threading
import time
from datetime import timedelta

import pytest

from rollouts.sandbox import Job, JobEnding, JobKind, JobLimits, Sandboxes
from rollouts.sandbox.deadline import jobs_end_by, latest_end

PATIENT = JobLimits(cpu=timedelta(seconds=30), wall=timedelta(seconds=60))


BUSY = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


@pytest.mark.parametrize("source", [BUSY, "import time; time.sleep(20)"], ids=["busy", "asleep"])
def test_a_job_ends_at_the_deadline_and_is_undecided(sandboxes: Sandboxes, source: str) -> None:
    # a limit under which the job would succeed
    job = Job(module="inside.program", payload={"source": source}, limits=PATIENT)
    # a sandbox is already running
    sandboxes.run(JobKind.SOLUTION, Job(module="inside.program", payload={"source": ""}))
    with jobs_end_by(time.monotonic() + 0.5):
        outcome = sandboxes.run(JobKind.SOLUTION, job)
    assert (outcome.ending, outcome.undecided) == (JobEnding.OUT_OF_TIME, True)


def test_a_job_that_begins_after_the_deadline_ends_at_once(sandboxes: Sandboxes) -> None:
    job = Job(module="inside.program", payload={"source": "while True: pass"}, limits=PATIENT)
    with jobs_end_by(time.monotonic() - 1):
        assert sandboxes.run(JobKind.SOLUTION, job).ending is JobEnding.OUT_OF_TIME


def test_deadlines_nest_and_belong_to_one_thread() -> None:
    found: list[float] = []
    with jobs_end_by(20.0):
        with jobs_end_by(30.0):
            assert latest_end() == 20.0
        with jobs_end_by(10.0):
            assert latest_end() == 10.0
        other = threading.Thread(target=lambda: found.append(latest_end()))
        other.start()
        other.join()
    assert (found, latest_end()) == ([math.inf], math.inf)
