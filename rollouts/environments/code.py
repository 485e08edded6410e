"""Environment `code`: Python programs that must pass every test of their problem, without partial credit.

The answer is the completion's last code block. Each test runs it in a process of its own, with Python's standard
library alone, in a sandbox without files, further processes or network.
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
    """Options of `code`."""

    cpu_seconds: Annotated[int, Field(ge=1, le=60)] = 5
    """CPU seconds per test; the wall-clock limit is three times as long plus 5 s."""
    memory_mib: Annotated[int, Field(ge=128, le=16384)] = 1024
    """Address space of a test's process in MiB, including about 100 MiB for the interpreter."""
    most_tests: Annotated[int, Field(ge=1, le=1000)] = 32
    """Maximum tests per problem; further tests are skipped."""


class Code:
    """The `code` environment; see the module docstring."""

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
        """Returns the number of usable rows in the file."""
        return len(self._problems)

    def prompt(self, index: int) -> Prompt:
        """Returns a row's problem."""
        problem = self._problems[index]
        data = {"problem_id": problem.problem_id, "verification_info": problem.info}
        return Prompt(index=index, text=problem.prompt, data=data)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Scores 1 if every test passes and the model ended by itself. Stops at the first failing test."""
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
        """Returns None: the rows have no verified solutions."""
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
