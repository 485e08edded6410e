"""`code`: programs are scored by their results, never by their claims."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rollouts.environments import Environment, load_environment
from rollouts.environments.code_tests import parse_tests, same
from rollouts.sandbox import Sandboxes
from rollouts.sandbox.deadline import jobs_end_by
from tests.rollouts.environments.conftest import WriteRows, row

PROGRAM = {
    "language": "python",
    "test_cases": [
        {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"},
        {"type": "stdin_stdout", "input": "40 2\n", "output": "42"},
    ],
}
FUNCTION = {"fn_name": "add", "inputs": [[1, 2], [40, 2]], "outputs": [3, 42]}
UNIT_TESTS = {
    "tests": """
from solution import add
import math

def test_whole(): assert add(1, 2) == 3
def test_parts():
    assert math.isclose(add(0.1, 0.2), 0.3)
    try:
        add(1, None)
    except TypeError:
        return
    raise AssertionError
assert add([1], [2]) == [1, 2]
assert add((1,), (2,)) == (1, 2)
"""
}
KINDS = {"program": PROGRAM, "function": FUNCTION, "unit tests": UNIT_TESTS}
RIGHT = {
    "program": "a, b = map(int, input().split())\nprint(a + b)",
    "function": "def add(a, b):\n    return a + b",
    "unit tests": "def add(a, b):\n    return a + b",
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def environments(write_rows: WriteRows, sandboxes: Sandboxes) -> dict[str, Environment]:
    """Returns one environment for each kind of tests."""
    return {
        kind: load_environment(
            "code",
            options={**write_rows([row(info, task_type="verifiable_code")]), "cpu_seconds": 1},
            sandboxes=sandboxes,
        )
        for kind, info in KINDS.items()
    }


def score(environment: Environment, source: str) -> float:
    """Scores a program in a code block."""
    return environment.score(environment.prompt(0), f"Here:\n```python\n{source}\n```\n", finished=True).task


@kinds
def test_a_correct_program_passes_every_test(environments: dict[str, Environment], kind: str) -> None:
    assert score(environments[kind], RIGHT[kind]) == 1.0


@kinds
def test_a_program_that_passes_only_some_tests_earns_no_reward(environments: dict[str, Environment], kind: str) -> None:
    half = "def add(a, b): return 3\nprint(3)" if kind != "program" else "input()\nprint(3)"
    found = environments[kind].score(environments[kind].prompt(0), f"```\n{half}\n```", finished=True)
    assert found.task == 0.0
    assert found.parts["tests"] > found.parts["passed"]


@kinds
@pytest.mark.parametrize("completion", ["", "no code", "```python\nunclosed", "```c\nint x;\n```"])
def test_an_answer_without_a_python_block_runs_no_program(
    environments: dict[str, Environment], kind: str, completion: str
) -> None:
    found = environments[kind].score(environments[kind].prompt(0), completion, finished=True)
    assert (found.task, found.parts["answered"]) == (0.0, 0.0)


def test_an_unfinished_answer_earns_no_reward(environments: dict[str, Environment]) -> None:
    completion = f"```python\n{RIGHT['program']}\n```"
    environment = environments["program"]
    assert environment.score(environment.prompt(0), completion, finished=False).task == 0.0


def test_a_method_of_a_solution_class_is_found(environments: dict[str, Environment]) -> None:
    source = "class Solution:\n    def add(self, a: int, b: List[int]) -> Optional[int]:\n        return a + b"
    assert score(environments["function"], source) == 1.0


FORGERIES = {
    "print a verdict": "print('passed')\nprint('{\"value\": \"3\"}')",
    "write a verdict to every descriptor": """
import os
for fd in range(64):
    for word in (b'passed', b'equal', b'{"value": "3"}\\n' * 3):
        try: os.write(fd, word)
        except OSError: pass
def add(a, b): return None
""",
    "write a verdict and leave": "import os\nos.write(3, b'passed')\nos._exit(0)",
    "equal everything": """
class Any_(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __str__(self): return '3'
    __hash__ = int.__hash__
def add(a, b): return Any_(7)
print(Any_(7))
""",
    "a value that is a tag": "def add(a, b): return {'tuple': [1, 2]}",
    "replace the comparison": """
import builtins, json, math, operator, sys
operator.eq = lambda a, b: True
json.dumps = lambda *a, **k: '{"value": "3"}'
math.isclose = lambda *a, **k: True
builtins.AssertionError = ValueError
sys.exit = lambda *a: None
def add(a, b): return 0
""",
    "look for the expected value": """
import gc, sys
def add(a, b):
    for each in gc.get_objects():
        if isinstance(each, dict) and ('output' in each or 'outputs' in each or 'tests' in each):
            return each
    frame = sys._getframe()
    while frame:
        if 'expected' in frame.f_locals: return frame.f_locals['expected']
        frame = frame.f_back
""",
    "exit well": "import sys\nsys.exit(0)",
    "raise what ends the tests": "def add(a, b): raise SystemExit(0)",
    "raise what means a skip": "import unittest\ndef add(a, b): raise unittest.SkipTest",
    "answer before the question": """
import os
os.write(3, b'{"value": "3"}\\n{"value": "0.3"}\\n')
def add(a, b): raise TypeError
""",
    "end in good order when exiting": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
    "kill its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef add(a, b): return 0",
    "read the tests": "def add(a, b): return open('/proc/self/fd/0').read() or open('tests.py').read()",
    "import the tests": "import tests, solution\ndef add(a, b): return 0",
    "leave a mark": "open('/tmp/muster-code-was-here', 'w').write('x')",
    "fork": "import os\nif os.fork():\n    os._exit(0)\nprint(3)\ndef add(a, b): return 3",
    "recurse": "def add(a, b): return add(a, b)",
    "return depth": "def add(a, b):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "return size": "def add(a, b): return 'x' * (1 << 26)",
    "return a number without end": "def add(a, b): return 1 << (1 << 24)",
    "replace our own modules": """
import inside.functions, inside.program, inside.values
inside.values.encode = lambda value: '3'
inside.functions._answer = lambda *a: '{"value": "3"}'
inside.program.execute = lambda *a, **k: {}
def add(a, b): return 0
""",
    "trace whoever calls": """
import sys, threading
def trace(frame, event, argument):
    for name in ('passed', 'expected', 'failed'): frame.f_globals[name] = frame.f_locals[name] = None
    return trace
sys.settrace(trace)
threading.settrace(trace)
def add(a, b): return 0
""",
    "be of another class": """
class Kind(type):
    def __eq__(cls, other): return True
    __hash__ = type.__hash__
class Any_(metaclass=Kind):
    __class__ = int
    def __eq__(self, other): return True
def add(a, b): return Any_()
""",
    "items without end": """
class Endless(dict):
    def items(self):
        while True: yield 1, 1
def add(a, b): return Endless(a=1)
""",
    "close every descriptor": "import os\nos.closerange(0, 64)\ndef add(a, b): return 3",
    "code of its own that calls the kernel as 32 bits do": """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(b'\\xb8\\x02\\0\\0\\0\\xcd\\x80\\xc3')  # fork
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
def add(a, b): return 0
""",
    "return keys that are bytes": "def add(a, b): return {b'x': 3}",
    "return keys that are sets": "def add(a, b): return {frozenset([1]): 3}",
    "answer with numbers whose hashes are equal": """
import json, os, time
pairs = ','.join(f'[{(2**61 - 1) * i},1]' for i in range(40000))
os.write(3, (json.dumps({"value": '{"dict": [' + pairs + ']}'}) + '\\n').encode())
os._exit(0)
""",
    "return itself": "def add(a, b): return add",
    "return a generator": "def add(a, b): yield 3",
    "break the line": "import os\ndef add(a, b): os.write(3, b'\\xff\\xfe\\n'); return 3",
    "be a syntax error": "def add(a, b: return",
    "hold a zero": "\0",
}
"""Ideas for passing without solving, one per row, tried on every kind of tests."""


@kinds
@pytest.mark.parametrize("source", FORGERIES.values(), ids=FORGERIES.keys())
def test_no_program_passes_without_solving_the_problem(
    environments: dict[str, Environment], kind: str, source: str
) -> None:
    began = time.monotonic()
    assert score(environments[kind], source) == 0.0
    assert time.monotonic() - began < 60  # the limit is a second of processor time, but the machine may be busy
    assert score(environments[kind], RIGHT[kind]) == 1.0
    assert not Path("/tmp/muster-code-was-here").exists()


@kinds
def test_a_program_that_exceeds_a_limit_is_marked_undecided(environments: dict[str, Environment], kind: str) -> None:
    environment = environments[kind]
    source = "def add(a, b):\n    while True: pass\nif __name__ == '__main__': add(1, 2)"
    found = environment.score(environment.prompt(0), f"```\n{source}\n```", finished=True)
    assert (found.task, found.parts["undecided"]) == (0.0, 1.0)


def test_rows_in_other_languages_are_left_out(write_rows: WriteRows) -> None:
    rows = [
        row({**PROGRAM, "language": "rust"}, task_type="verifiable_code"),
        row({"language": "python", "test_cases": []}, task_type="verifiable_code"),
        row({"language": "python", "test_cases": [{"type": "telepathy"}]}, task_type="verifiable_code"),
        row(PROGRAM, task_type="prime_rl_code"),
    ]
    environment = load_environment("code", options=write_rows(rows))
    assert environment.size() == 1
    assert environment.version.startswith("1+py3.")


@pytest.mark.parametrize(
    ("info", "count"),
    [
        (PROGRAM, 2),
        ({"test_cases": '[{"input": "1", "output": "2"}]'}, 1),
        ({"inputs": ["1", "2", "3"], "outputs": ["1", "2", "3"]}, 3),
        ({"test_cases": [{"input": "", "output": ""}] * 50}, 5),
        (FUNCTION, 2),
        ({"test_cases": [{"type": "unit_tests", "code": "assert f()"}]}, 1),
        (UNIT_TESTS, 1),
    ],
)
def test_every_format_of_tests_is_read(info: dict[str, object], count: int) -> None:
    assert len(parse_tests(info, most=5)) == count


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (True, 1, False),
        (0, False, False),
        ("1", 1, False),
        ([1, [2]], [1, [2]], True),
        ([1, 2], [1], False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"b": 1}, False),
        (None, None, True),
        (None, 0, False),
        (float("nan"), float("nan"), False),
    ],
)
def test_results_are_compared_by_value_and_type(one: object, other: object, equal: bool) -> None:
    assert same(one, other) is equal
    assert same(other, one) is equal


def test_an_integer_larger_than_any_float_equals_no_float() -> None:
    assert not any(same(10**400, each) or same(each, 10**400) for each in (1.5, float("inf"), float("nan")))


def test_many_slow_tests_end_with_the_time_limit_for_all_rows(write_rows: WriteRows, sandboxes: Sandboxes) -> None:
    cases = [{"type": "stdin_stdout", "input": "1\n", "output": "1\n"}] * 32
    options = write_rows([row({"language": "python", "test_cases": cases}, task_type="verifiable_code")])
    environment = load_environment("code", options=options, sandboxes=sandboxes)
    answer = "```python\nimport time; time.sleep(0.5); print(input())\n```"
    with jobs_end_by(time.monotonic() + 2):
        score = environment.score(environment.prompt(0), answer, finished=True)
    assert (score.task, score.parts["undecided"]) == (0.0, 1.0)
