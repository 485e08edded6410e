"""Job that runs a task's unit tests.

The functions that the tests call run in another process, in another sandbox. So a solution can't reach the tests,
their expected values or the verdict. The solution returns only plain data. This process decodes the data to built-in
types, so the solution can't define how its results are compared.

The job writes its verdict to descriptor 3: `passed`, or `failed` with the type of the exception. It writes calls to
descriptor 4, and reads their results from descriptor 0.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import sys
import types
import unittest
from collections.abc import Callable
from typing import TextIO

from . import values
from .program import OUT_OF_MEMORY

_ANSWERS_FROM, _VERDICT, _CALLS_TO = 0, 3, 4
_LONGEST_ANSWER = 1 << 20
_CAN_BE_RAISED = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}


class SolutionFailed(Exception):
    """The solution raised a custom exception, ended, or sent an invalid value."""


class _Solution(types.ModuleType):
    """The module that the tests import as `solution`: every name is a function that the other process runs."""

    def __init__(self, calls: TextIO, answers: TextIO) -> None:
        super().__init__("solution")
        self._calls: TextIO = calls
        self._answers: TextIO = answers

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: object, **kwargs: object) -> object:
            line = json.dumps({"name": name, "args": values.encode(list(args)), "kwargs": values.encode(kwargs)})
            self._calls.write(line + "\n")
            self._calls.flush()
            return _result(self._answers.readline(_LONGEST_ANSWER))

        call.__name__ = name
        return call


def run(payload: dict[str, str]) -> int:
    """Runs the tests in `tests`; returns 0 and writes `passed` only if all of them passed."""
    with (
        open(_CALLS_TO, "w", encoding="utf-8") as calls,
        open(_ANSWERS_FROM, encoding="utf-8", errors="replace") as answers,
        open(_VERDICT, "w", encoding="utf-8") as verdict,
    ):
        solution = _Solution(calls, answers)
        try:
            _run_all(payload["tests"], solution)
        except MemoryError:
            return OUT_OF_MEMORY
        except BaseException as error:  # noqa: BLE001 - any exception fails the test
            verdict.write(f"failed: {type(error).__name__}")
            return 1
        verdict.write("passed")
    return 0


def _run_all(tests: str, solution: _Solution) -> None:
    sys.modules["solution"] = solution
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    for name in _free_names(tests):
        setattr(module, name, getattr(solution, name))
    exec(compile(tests, "tests.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - this process's purpose
    for name, found in list(vars(module).items()):
        if name.startswith("test") and inspect.isfunction(found) and found.__module__ == "tests":
            found()
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    if suite.countTestCases():
        result = unittest.TestResult()
        suite.run(result)
        if not result.wasSuccessful():
            raise AssertionError


def _free_names(tests: str) -> list[str]:
    """Returns names that the tests use but do not define, as functions of the solution."""
    tree = ast.parse(tests)
    bound = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return sorted(name for name in used - bound if not hasattr(builtins, name) and not name.startswith("__"))


def _result(line: str) -> object:
    """Returns the result of a call; raises the call's exception if it is a built-in exception."""
    try:
        answer = json.loads(line)
        if "error" not in answer:
            return values.decode(answer["value"])
        raised = _CAN_BE_RAISED[answer["error"]]()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SolutionFailed from error
    raise raised
