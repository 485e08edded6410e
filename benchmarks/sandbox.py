"""Measures the cost of scoring an answer; `python -m benchmarks.sandbox`.

Compared in one run on this machine: a program in a fork of a warm sandbox under both isolations, a cold interpreter
without any protection, and one that bubblewrap starts for this program alone. Then the three kinds of tests of `code`,
and `math` with an answer that needs the library. Needs `bwrap` on the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from rollouts.environments.code_tests import FunctionTest, ProgramTest, UnitTests
from rollouts.sandbox import Isolation, Job, JobKind, JobLimits, Sandboxes, SandboxSettings
from rollouts.sandbox.launch import prepare

SECONDS = float(os.environ.get("MUSTER_BENCHMARK_SECONDS", "3"))
SOURCE = "a, b = map(int, input().split())\nprint(a + b)\n"
PROGRAM = Job(module="inside.program", payload={"source": SOURCE}, standard_input=b"1 2\n")
FUNCTION = "def add(a, b): return a + b"
TESTS = UnitTests("from solution import add\nassert add(1, 2) == 3\nassert add('a', 'b') == 'ab'\n")
ANSWER = Job(module="inside.mathematics", payload={"expected": "x^2+2x+1", "given": "(x+1)^2"})
LIMITS = JobLimits()


def cold(command: list[str]) -> None:
    """Runs one program in a new interpreter."""
    ended = subprocess.run([*command, "-c", SOURCE], input=b"1 2\n", capture_output=True, check=True)
    assert ended.stdout == b"3\n"


def measure(work: Callable[[], object], *, threads: int = 1) -> tuple[float, float]:
    """Returns milliseconds per job and total jobs per second, after a warm-up."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: work(), range(4 * threads)))
        until = time.monotonic() + SECONDS

        def repeat(_: int) -> tuple[int, float]:
            calls, spent = 0, 0.0
            while time.monotonic() < until:
                began = time.perf_counter()
                work()
                spent += time.perf_counter() - began
                calls += 1
            return calls, spent

        found = list(pool.map(repeat, range(threads)))
    calls = sum(each for each, _ in found)
    return 1000 * sum(spent for _, spent in found) / calls, calls / SECONDS


def main() -> None:
    """Prints the table."""
    table = Table("what", "ms each", "each second", title="judging one answer")
    python = str(Path(sys.executable).resolve())

    def row(name: str, work: Callable[[], object], threads: int = 1) -> None:
        each, rate = measure(work, threads=threads)
        table.add_row(name, f"{each:.1f}", f"{rate:,.0f}")

    row("cold interpreter, no protection", lambda: cold([python, "-I", "-S"]))
    if shutil.which("bwrap"):
        launch = prepare(JobKind.SOLUTION, Isolation.NAMESPACES).command
        bubblewrap = list(launch[: launch.index("--") + 1])
        row("cold interpreter in a bubblewrap of its own", lambda: cold([*bubblewrap, python, "-I", "-S"]))
    cores = os.cpu_count() or 1
    for isolation in Isolation:
        if isolation is Isolation.NAMESPACES and not shutil.which("bwrap"):
            continue
        found = Sandboxes(SandboxSettings(isolation=isolation, most=cores))
        name = f"warm sandbox, {isolation.value}"
        work = partial(found.run, JobKind.SOLUTION, PROGRAM)
        row(name, work)
        row(f"the same, {cores} at a time", work, cores)
        found.close()
    best = Sandboxes(SandboxSettings(most=cores))
    row("code: a program's output", lambda: ProgramTest("1 2\n", "3").run(SOURCE, best, LIMITS))
    row("code: a function's result", lambda: FunctionTest("add", (1, 2), 3).run(FUNCTION, best, LIMITS))
    row("code: unit tests in a second sandbox", lambda: TESTS.run(FUNCTION, best, LIMITS))
    row("math: symbolic equality", lambda: best.run(JobKind.MATHEMATICS, ANSWER))
    best.close()
    Console().print(table)


if __name__ == "__main__":
    end_in_order()
    main()
