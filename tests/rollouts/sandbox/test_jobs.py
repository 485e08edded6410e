"""A job's input and output, and independence of jobs from each other."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from protocol.errors import InvalidInput
from rollouts.sandbox import Job, JobEnding, JobKind, JobLimits, JobOutcome, Sandboxes, launch
from rollouts.sandbox.inside import values


def run(sandboxes: Sandboxes, source: str, standard_input: bytes = b"", output_bytes: int = 64 * 1024) -> JobOutcome:
    """Runs a program."""
    limits = JobLimits(output_bytes=output_bytes)
    job = Job(module="inside.program", payload={"source": source}, standard_input=standard_input, limits=limits)
    return sandboxes.run(JobKind.SOLUTION, job)


def test_a_program_gets_its_input_and_its_output_is_returned(sandboxes: Sandboxes) -> None:
    outcome = run(sandboxes, "import sys; print(input()[::-1]); sys.stderr.write('é'); sys.exit(3)", "häus\n".encode())
    assert (outcome.ending, outcome.exit_code) == (JobEnding.EXITED, 3)
    assert (outcome.output.decode(), outcome.errors.decode()) == ("suäh\n", "é")
    assert not outcome.succeeded
    assert not outcome.undecided


def test_a_mebibyte_of_input_arrives_completely(sandboxes: Sandboxes) -> None:
    outcome = run(sandboxes, "import sys; print(len(sys.stdin.read()))", b"x" * (1 << 20))
    assert outcome.output == b"1048576\n"


@pytest.mark.parametrize(("printed", "ending"), [(1000, JobEnding.EXITED), (1001, JobEnding.TOO_MUCH_OUTPUT)])
def test_output_is_cut_exactly_at_its_limit(sandboxes: Sandboxes, printed: int, ending: JobEnding) -> None:
    outcome = run(sandboxes, f"print('x' * {printed}, end='')", output_bytes=1000)
    assert (outcome.ending, len(outcome.output)) == (ending, 1000)


def test_threads_are_awaited_and_deep_recursion_works(sandboxes: Sandboxes) -> None:
    source = """
import sys, threading
sys.setrecursionlimit(1_000_000)
threading.stack_size(64 << 20)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
threading.Thread(target=lambda: print(depth(50_000))).start()
"""
    assert run(sandboxes, source).output == b"50000\n"


def test_a_program_has_exactly_five_open_descriptors(sandboxes: Sandboxes) -> None:
    source = """
import os
def is_open(fd):
    try: os.fstat(fd)
    except OSError: return False
    return True
print([fd for fd in range(1024) if is_open(fd)])
"""
    assert run(sandboxes, source).output == b"[0, 1, 2, 3, 4]\n"


def test_a_job_does_not_see_changes_of_the_previous_one(sandboxes: Sandboxes) -> None:
    spoil = """
import builtins, json, os, sys
builtins.print = json.loads = None
os.environ['A'] = 'b'
sys.path.clear()
"""
    assert run(sandboxes, spoil).succeeded
    look = "import os, json; print(json.loads('1'), os.environ.get('A'), __name__)"
    assert run(sandboxes, look).output == b"1 None __main__\n"


def test_random_numbers_are_the_same_in_every_run(sandboxes: Sandboxes) -> None:
    source = "import random; print(random.random(), hash('a'), list({'x', 'y', 'z'}))"
    assert run(sandboxes, source).output == run(sandboxes, source).output


LIBRARY = """
import datetime, importlib, sys
from concurrent.futures import ThreadPoolExecutor
for name in sys.stdin.read().split(): importlib.import_module(name)
print(datetime.datetime.strptime("2026-11-21", "%Y-%m-%d").day, "\u00fc".encode("idna"), 10 ** 4000 > 1)
with ThreadPoolExecutor(2) as threads: print(*threads.map(str, range(3)))
for name in ("sqlite3", "tkinter", "numpy", "pydantic", "rollouts"):
    try: importlib.import_module(name)
    except ImportError: print("no", name)
"""


def test_the_standard_library_is_the_same_under_every_isolation(sandboxes: Sandboxes) -> None:
    outcome = run(sandboxes, LIBRARY, " ".join(launch._STANDARD_LIBRARY).encode())
    missing = "no sqlite3\nno tkinter\nno numpy\nno pydantic\nno rollouts\n"
    assert (outcome.output.decode(), outcome.errors) == (f"21 b'xn--tda' True\n0 1 2\n{missing}", b"")


def test_functions_are_called_by_name_with_only_their_arguments(sandboxes: Sandboxes) -> None:
    source = (
        "def add(a, b=1): return a + b\nclass Solution:\n    def twice(self, xs: List[int]): return [2 * x for x in xs]"
    )
    calls = [("add", [1], {"b": 2}), ("twice", [[1, 2]], {}), ("add", ["1"], {}), ("missing", [], {})]
    lines = [
        json.dumps({"name": name, "args": values.encode(args), "kwargs": values.encode(kwargs)})
        for name, args, kwargs in calls
    ]
    job = Job(module="inside.functions", payload={"source": source}, calls="\n".join(lines).encode())
    answers = [json.loads(line) for line in sandboxes.run(JobKind.SOLUTION, job).answer.splitlines()]
    assert [each.get("value") and values.decode(each["value"]) for each in answers[:2]] == [3, [2, 4]]
    assert [each.get("error") for each in answers] == [None, None, "TypeError", "NameError"]


@pytest.mark.parametrize(
    "limits",
    [{"cpu": timedelta(milliseconds=10)}, {"wall": timedelta()}, {"memory_bytes": 1000}, {"output_bytes": 0}],
)
def test_limits_that_no_job_can_meet_are_refused(limits: dict[str, timedelta | int]) -> None:
    with pytest.raises(InvalidInput):
        JobLimits(**limits)  # type: ignore[arg-type]  # a table of single arguments
