"""Tests of programming problems: parses the tests of a row, and runs them against a completion.

Expected values never enter the process that runs a completion. This module compares the output of a program, or the
result of a function, with the expected value. Unit tests run in their own sandbox and call the completion's functions
by messages of plain data. So a completion can't read expected values, change the tests or forge the test result.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol, Self

from rollouts.sandbox import Job, JobKind, JobLimits, Sandboxes
from rollouts.sandbox.inside import values

_TO_LEAVE = timedelta(seconds=1)
"""Time in which the process of a solution may exit after its tests are over."""

_FLOATS_AGREE = 1e-9


@dataclass(frozen=True, slots=True)
class TestVerdict:
    """Result of one test."""

    passed: bool
    undecided: bool = False
    """True if a limit ended the test."""


class Test(Protocol):
    """Interface of a test."""

    def run(self, source: str, sandboxes: Sandboxes, limits: JobLimits) -> TestVerdict:
        """Runs the test on a completion's source.

        Raises:
            SandboxUnavailable: This machine has no sandbox for the test.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProgramTest:
    """Runs a program and compares its standard output."""

    standard_input: str
    expected: str

    def run(self, source: str, sandboxes: Sandboxes, limits: JobLimits) -> TestVerdict:
        """Passes if the program exits with 0 and every line matches.

        Blanks at line ends and at both ends of the output are ignored.
        """
        stdin = self.standard_input.encode(errors="replace")
        job = Job(module="inside.program", payload={"source": source}, standard_input=stdin, limits=limits)
        outcome = sandboxes.run(JobKind.SOLUTION, job)
        right = _lines(outcome.output.decode(errors="replace")) == _lines(self.expected)
        return TestVerdict(outcome.succeeded and right, outcome.undecided)


@dataclass(frozen=True, slots=True)
class FunctionTest:
    """Calls a function, or a method of a class `Solution`, once, and compares the result."""

    function: str
    arguments: tuple[object, ...]
    expected: object

    def run(self, source: str, sandboxes: Sandboxes, limits: JobLimits) -> TestVerdict:
        """Passes if the call returns the expected value; tuples count as lists, because JSON has no tuples."""
        call = {"name": self.function, "args": values.encode(list(self.arguments)), "kwargs": values.encode({})}
        job = Job(
            module="inside.functions",
            payload={"source": source},
            calls=json.dumps(call).encode() + b"\n",
            keep_output=False,
            limits=limits,
        )
        outcome = sandboxes.run(JobKind.SOLUTION, job)
        return TestVerdict(outcome.succeeded and self._is_expected(outcome.answer), outcome.undecided)

    def _is_expected(self, answer: bytes) -> bool:
        try:
            returned = values.decode_json(json.loads(answer.split(b"\n", 1)[0])["value"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        return same(returned, self.expected)


@dataclass(frozen=True, slots=True)
class UnitTests:
    """Python assertions, `test_…` functions or `unittest` cases for functions defined in the completion."""

    source: str

    def run(self, source: str, sandboxes: Sandboxes, limits: JobLimits) -> TestVerdict:
        """Passes if the tests run to the end without an exception."""
        return sandboxes.twice(lambda: self._run(source, sandboxes, limits))

    def _run(self, source: str, sandboxes: Sandboxes, limits: JobLimits) -> TestVerdict:
        with (
            sandboxes.borrow(JobKind.SOLUTION) as of_solution,
            sandboxes.borrow(JobKind.CHECKER) as of_checker,
            _Pipe() as calls,
            _Pipe() as answers,
        ):
            solution = of_solution.start(
                Job(
                    module="inside.functions",
                    payload={"source": source},
                    calls=calls.read_end,
                    answers=answers.write_end,
                    keep_output=False,
                    limits=limits,
                )
            )
            checker = of_checker.start(
                Job(
                    module="inside.checker",
                    payload={"tests": self.source},
                    standard_input=answers.read_end,
                    calls=calls.write_end,
                    limits=replace(limits, output_bytes=4096),
                )
            )
            calls.close()
            answers.close()
            found = checker.finish()
            left = solution.end(within=_TO_LEAVE)
        undecided = found.undecided or (left is not None and left.undecided)
        return TestVerdict(found.succeeded and found.answer == b"passed", undecided)


def parse_tests(info: Mapping[str, object], *, most: int) -> tuple[Test, ...]:
    """Parses a row's `verification_info`.

    Accepts `{"language": "python", "test_cases": [...]}` with cases of type `stdin_stdout`, `function_call` and
    `unit_tests`; `{"fn_name": …, "inputs": [...], "outputs": [...]}`; and `{"tests": "Python source"}`.

    Args:
        info: The row's verification info.
        most: Maximum tests; further tests are skipped.

    Raises:
        ValueError: There are no tests, or a test has an unknown form.
    """
    if info.get("language", "python") != "python":
        raise ValueError("the language is not Python")
    if isinstance(source := info.get("tests"), str):
        return (UnitTests(source),)
    cases = info.get("test_cases")
    if isinstance(cases, str):
        cases = json.loads(cases)
    if isinstance(cases, list) and cases:
        return tuple(_case(case) for case in cases[:most])
    inputs, outputs = info.get("inputs"), info.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not 0 < len(inputs) == len(outputs):
        raise ValueError("there are no tests")
    kind = "function_call" if info.get("fn_name") else "stdin_stdout"
    pairs = [
        {"type": kind, "fn_name": info.get("fn_name"), "input": given, "output": expected}
        for given, expected in zip(inputs, outputs, strict=True)
    ]
    return tuple(_case(pair) for pair in pairs[:most])


def same(one: object, other: object) -> bool:
    """Returns whether two plain values are equal.

    A Boolean never equals a number. A float equals a number if the difference is at most 1e-9, relative or absolute.
    """
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        if not isinstance(one, int | float) or not isinstance(other, int | float):
            return False
        return _are_close(one, other)
    return type(one) is type(other) and one == other


def _are_close(one: float, other: float) -> bool:
    try:
        return math.isclose(one, other, rel_tol=_FLOATS_AGREE, abs_tol=_FLOATS_AGREE)
    except OverflowError:  # an integer too large for a float
        return False


def _case(case: object) -> Test:
    if not isinstance(case, dict):
        raise ValueError("a test case is not an object")  # noqa: TRY004 - this parser raises only ValueError
    match case.get("type", "stdin_stdout"), case:
        case "stdin_stdout", {"input": given, "output": expected}:
            return ProgramTest(_text(given), _text(expected))
        case "function_call", {"fn_name": str(name), "input": list(arguments), "output": expected}:
            return FunctionTest(name, tuple(arguments), expected)
        case "unit_tests", {"code": str(source)}:
            return UnitTests(source)
    raise ValueError(f"a test case of type {str(case.get('type'))[:40]!r} is unknown or lacks a field")


def _text(value: object) -> str:
    return "\n".join(str(line) for line in value) if isinstance(value, list) else str(value)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


class _Pipe:
    """A pipe between two jobs.

    This process holds the pipe only until both jobs have received their ends.
    """

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self.read_end)
            os.close(self.write_end)
