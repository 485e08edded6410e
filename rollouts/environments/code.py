"""`code`: programs in Python that must pass every test of their problem; there is no credit for a part.

The answer is the last code block of the completion. It runs with Python's standard library alone, one process for each
test, in a sandbox: without files of its own, without other processes, without network.
"""

from __future__ import annotations

import platform
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from rollouts.environments.code_tests import parse_tests
from rollouts.environments.completions import python_source
from rollouts.environments.datasets import Dataset, DatasetOptions, DatasetProblem
from rollouts.environments.factory import Family, SandboxSource
from rollouts.environments.interface import Environment, Prompt, Score
from rollouts.sandbox import JobLimits

_ALL_TESTS = 1_000_000


class CodeOptions(DatasetOptions):
    """What can be set."""

    cpu_seconds: Annotated[int, Field(ge=1, le=60)] = 5
    """For each test; waiting counts too, three times as much of it."""
    memory_mib: Annotated[int, Field(ge=128, le=16384)] = 1024
    """Address space, the interpreter's own 100 MiB included."""
    most_tests: Annotated[int, Field(ge=1, le=1000)] = 32
    """Tests of a problem after this many are left out."""


class Code:
    """The environment; see the head of this file."""

    name = "code"

    def __init__(self, version: str, options: CodeOptions, sandboxes: SandboxSource) -> None:
        self.version = version
        self._options = options
        self._sandboxes = sandboxes
        self._problems = Dataset(options, task_types=("verifiable_code", "prime_rl_code"), usable=_usable)
        self._limits = JobLimits(
            cpu=timedelta(seconds=options.cpu_seconds),
            wall=timedelta(seconds=3 * options.cpu_seconds + 5),
            memory_bytes=options.memory_mib << 20,
        )

    def size(self) -> int | None:
        """The usable rows of the file."""
        return len(self._problems)

    def prompt(self, index: int) -> Prompt:
        """A row's problem."""
        problem = self._problems[index]
        data = {"problem_id": problem.problem_id, "verification_info": problem.info}
        return Prompt(index=index, text=problem.prompt, data=data)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Right if every test passes and the model ended by itself. The first test that does not pass is the last."""
        source = python_source(completion)
        parts = {"finished": float(finished), "answered": float(source is not None), "undecided": 0.0}
        if source is None or not finished:
            return Score(task=0.0, parts=parts)
        info = prompt.data["verification_info"]
        tests = parse_tests(info if isinstance(info, dict) else {}, most=self._options.most_tests)
        for number, test in enumerate(tests):
            verdict = test.run(source, self._sandboxes(), self._limits)
            if not verdict.passed:
                counted = {"tests": float(len(tests)), "passed": float(number), "undecided": float(verdict.undecided)}
                return Score(task=0.0, parts={**parts, **counted})
        return Score(task=1.0, parts={**parts, "tests": float(len(tests)), "passed": float(len(tests))})

    def demonstration(self, prompt: Prompt) -> None:
        """None: the rows have no solutions that were checked."""
        del prompt


def _usable(problem: DatasetProblem) -> bool:
    try:
        parse_tests(problem.info, most=_ALL_TESTS)
    except (ValueError, RecursionError):
        return False
    return True


def _interpreter() -> str:
    major, minor, _ = platform.python_version_tuple()
    return f"py{major}.{minor}"


def _build(version: str, options: CodeOptions, sandboxes: SandboxSource) -> Environment:
    return Code(version, options, sandboxes)


family = Family(
    name="code",
    version="1",
    summary="Python programs that must pass every test of a problem from a file",
    options=CodeOptions,
    build=_build,
    depends_on=_interpreter,
)
