"""Environment `python`: programs whose output is the same everywhere, and programs that decide nothing."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
from pydantic import JsonValue

from rollouts.environments import Rewards, load_environment
from rollouts.environments.dialogue import ModelMessage, Reply, ToolCall
from rollouts.environments.errors import BadOptions
from rollouts.environments.python import NO_OUTPUT, TOO_LONG
from rollouts.environments.registry import find_family
from rollouts.environments.validation import CheckedEnvironment
from rollouts.sandbox import Job, JobKind, JobOutcome, Sandboxes

OBJECTS = "class A: pass\n"
CLASS = "class C:\n "
MUCH = "bytearray(4 << 30)"


@pytest.fixture(params=["strong", "weak"])
def environment(
    request: pytest.FixtureRequest, sandboxes: Sandboxes, weaker_sandboxes: Sandboxes
) -> CheckedEnvironment:
    """Returns the environment under both isolations, whose programs must have the same output."""
    return python(sandboxes if request.param == "strong" else weaker_sandboxes)


def python(sandboxes: Sandboxes, **options: JsonValue) -> CheckedEnvironment:
    return load_environment(
        "python", options={"cpu_seconds": 1, "output_characters": 100, **options}, sandboxes=sandboxes
    )


def run(environment: CheckedEnvironment, *programs: str) -> Reply:
    episode = environment.begin(environment.prompt(0))
    return episode.reply(ModelMessage(text="", calls=tuple(ToolCall("python", {"code": each}) for each in programs)))


OUTPUTS = {
    "an expression": ("17*23", "391"),
    "nothing": ("x = 1", NO_OUTPUT),
    "printed, then an expression": ("print('a')\n'b'", "a\n'b'"),
    "exact functions": ("import math\nmath.sqrt(2), math.gcd(4, 6)", "(1.4142135623730951, 2)"),
    "rounded functions": ("import math as m\nm.sin(1), m.pi", "(0.841470984808, 3.141592653589793)"),
    "rounded powers": (
        "x = 2\nx **= .5\n[x, 2 ** .5, pow(2, .5), 2 ** 70]",
        "[1.41421356237, 1.41421356237, 1.41421356237, 1180591620717411303424]",
    ),
    "seeded": ("import random\nrandom.seed('a')\na = random.random()\nrandom.seed('a')\na == random.random()", "True"),
    "modules": ("import collections.abc\nfrom fractions import *\nFraction(1, 3)", "Fraction(1, 3)"),
    "a class": (OBJECTS + "A.__name__, hasattr(A, 'x')", "('A', False)"),
    "addresses": ("def f(): pass\nprint(f, map)", "<function f at 0x…> <class 'map'>"),
    "an error": ("print(1)\n1/0", "1\nZeroDivisionError: division by zero (line 2)"),
    "a syntax error": ("print(", "SyntaxError: '(' was never closed (line 1)"),
    "recursion": ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded (line 1)"),
    "half a character": ("print('\\ud800')", "?"),
    "the end": ("print(1)\nexit()\nprint(2)", "1"),
    "a flood": ("while True: print('a' * 60)", "a" * 60 + "\n" + "a" * 39 + " … (cut off)"),
    "no clock": ("import time", "ImportError: there is no module time here"),
    "no files": ("open('/etc/passwd')", "NameError: name 'open' is not defined (line 1)"),
    "no addresses": ("id(1)", "NameError: name 'id' is not defined (line 1)"),
    "no unseeded numbers": ("import random\nrandom.seed(None)", "TypeError: a seed is a number or a text (line 2)"),
    "no other modules": (
        "import json\njson.decoder",
        "AttributeError: module 'json' has no attribute",
    ),
    "no special names": ("().__class__.__base__", "Error: the name __base__ can't be used here"),
    "no special names in texts": (
        "getattr(1, '__ha' + 'sh__')",
        "Error: the name __hash__",
    ),
    "no special names in patterns": ("match 1:\n case object(__hash__=h): h", "Error: the name __hash__ can't"),
    "no special names of other types": (
        "class S(str):\n def __str__(self): return 'a'\ngetattr(1, S('__hash__'))",
        "TypeError: the name of an attribute is a plain text",
    ),
    "no frames": ("g = (x for x in [])\ng.gi_frame", "Error: the name gi_frame can't be used here"),
    "no guard's name": ("def __check_memory__(): pass", "Error: the name __check_memory__ can't be used here"),
    "no special name of an import": ("import math as __builtins__", "Error: the name __builtins__"),
    "no special name of an argument": ("def f(__power__): pass", "Error: the name __power__"),
    "no special name of a keyword": ("dict(__globals__=1)", "Error: the name __globals__"),
    "no special name of an error": ("try: 1/0\nexcept Exception as __show__: pass", "Error: the name __show__"),
    "no special name in a match": ("match {}:\n case {**__show__}: pass", "Error: the name __show__"),
    "no special method outside": ("def __len__(): pass", "Error: the name __len__"),
    "no special method that maps names": (CLASS + "def __prepare__(*a): return {}", "Error: the name __prepare__"),
    "special methods": (CLASS + "def __len__(self): return 3\nlen(C())", "3"),
    "no name of another text class": (
        "class S(str):\n def __str__(self): return 'x'\ngetattr(print, S('__self__'))",
        "TypeError: the name of an attribute is a plain text",
    ),
    "formats": ("'{0.real:>{1}} {x[k]}'.format(1, 3, x={'k': 2}), '{a}'.format_map({'a': 1})", "('  1 2', '1')"),
    "formats by name": ("[*map(str.format, ['{}'], [1])], getattr('{}', 'format')(2)", "(['1'], '2')"),
    "another format": (CLASS + "def format(self, x): return x\nC().format('{0.__x__}')", "'{0.__x__}'"),
    "no special names in formats": ("'{0.__class__.__init__.__globals__}'.format(1)", "Error: the name __globals__"),
    "nor in widths": ("str.format('{0:{0.__hash__}}', 1)", "Error: the name __hash__"),
    "nor in other formats": ("f = '{a.__hash__}'.format_map\nf({'a': 1})", "Error: the name __hash__"),
    "no formatter": ("from string import Formatter", "ImportError: cannot import name 'Formatter'"),
    "no evaluation of annotations": ("import functools\nfunctools.singledispatch", "AttributeError"),
    "no members from modules": ("import enum\nenum.Enum._convert_", "Error: the name _convert_"),
    "no writes to modules": ("import enum\nenum.global_enum", "AttributeError"),
    "no internals through fields": (
        (
            "from dataclasses import *\n@dataclass\nclass E(Exception):\n a: int = 1\n"
            "fields(E)[0].name = '__traceback__'\ntry: raise E\nexcept E as e: replace(e)"
        ),
        "Error: the name __traceback__",
    ),
    "rounded sizes": ("import operator\n[abs(1 + 1j), operator.abs(1 + 1j)]", "[1.41421356237, 1.41421356237]"),
    "no positions in patterns": ("match 1:\n case int(x): pass", "Error: a pattern of a class needs names"),
    "no wrapped functions": (
        (
            "import functools, math\nclass W:\n def __setattr__(self, name, value): print(name)\n"
            "functools.wraps(math.sin)(W())\n"
            "functools.update_wrapper(W(), math.sin, ('__wrapped__', '__globals__'), ())"
        ),
        "__name__\n__qualname__\n__doc__\nTypeError",
    ),
    "decorators": (
        (
            "import functools\ndef d(f):\n @functools.wraps(f)\n def g(x): return f(x) + 1\n return g\n"
            "@d\ndef f(x):\n 'doc'\n return x\nf(1), f.__name__, f.__doc__"
        ),
        "(2, 'f', 'doc')",
    ),
    "data classes": (
        (
            "from dataclasses import *\n@dataclass(order=True)\nclass P:\n 'doc'\n x: int\n y: float = 2 ** .5\n"
            "replace(P(1), x=2), asdict(P(1, 2)), P.__doc__"
        ),
        "(P(x=2, y=1.41421356237), {'x': 1, 'y': 2}, 'doc')",
    ),
    "no source in fields": (
        "from dataclasses import dataclass\ndataclass(type('A', (), {'__annotations__': {'x=print(1)': int}}))",
        "Error: the name of a field is an identifier",
    ),
    "powers in a class that maps names": (
        (
            "class M(type): pass\nM2 = type('M2', (type,), {'__prepare__': lambda *a: {'power ': lambda a, b: 7}})\n"
            "class A(metaclass=M2): x = 2 ** .5\nA.x"
        ),
        "1.41421356237",
    ),
    "the line of an error in a block": (
        CLASS + "def __enter__(self): pass\n def __exit__(self, *a): print('exit')\n"
        "try:\n with C(), C():\n  1/0\nfinally: print('end')",
        "exit\nexit\nend\nZeroDivisionError: division by zero (line 6)",
    ),
    "a return in a block": (
        "def f():\n try: return 1\n except OSError: pass\n else: 2\n finally: print(3)\nf()",
        "3\n1",
    ),
    "a long program": ("#" * 17_000, TOO_LONG),
}


@pytest.mark.parametrize(("program", "expected"), OUTPUTS.values(), ids=OUTPUTS.keys())
def test_a_program_has_one_output(program: str, expected: str, environment: CheckedEnvironment) -> None:
    reply = run(environment, program)
    assert not reply.done
    assert reply.messages[0].text.startswith(expected)


UNDECIDED = {
    "too much time": "while True: pass",
    "too much memory": "x = [0] * 10**10",
    "too much memory, caught": "try: x = [0] * 10**10\nexcept BaseException: print('caught')",
    "too much memory, with a guard of its own": f"check_memory = print\ntry: {MUCH}\nexcept MemoryError: print('hit')",
    "too much memory, dropped at the end": f"def f():\n try: {MUCH}\n finally: return 'hit'\nf()",
    "too much memory, and a handler that ends": f"try: {MUCH}\nexcept exit(): pass",
    "too much memory, and a handler that floods": f"try: {MUCH}\nexcept print('x' * 999): pass",
    "too much memory, replaced": f"def f():\n try: {MUCH}\n except 1/0: pass\ntry: f()\nexcept Exception: print('hit')",
    "too much memory, in a group": f"try:\n try: {MUCH}\n except* OSError: pass\nexcept BaseException: print('hit')",
    "too much memory, suppressed": CLASS
    + f"def __enter__(self): pass\n def __exit__(self, *a): return True\nwith C(): {MUCH}\nprint('hit')",
    "too much memory, suppressed by the first of two": CLASS
    + "def __init__(self, x): self.x = x\n def __enter__(self): bytearray(self.x)\n"
    + " def __exit__(self, *a): return True\nwith C(0), C(4 << 30): pass\nprint('hit')",
    "too much memory, when a generator is closed": "def g():\n try: yield 1\n"
    f" finally: {MUCH}\nx = g()\nnext(x)\ndel x\nprint('hit')",
    "too much memory, ignored": f"C = type('C', (), {{'__del__': lambda self: {MUCH}}})\nC()\nprint('hit')",
    "too much memory, in the text of an error": f"class E(Exception):\n def __str__(self): {MUCH}\nraise E",
    "memory near the limit": "x = 0\ntry:\n while True: x = bytearray(len(x) + (1 << 20)) if x else bytearray(1)\n"
    "except BaseException: pass",
    "the order of addresses": OBJECTS + "x = [A() for _ in range(99)]\n[x.index(y) for y in set(x)]",
    "a part of an address": "def f(): pass\nstr(f)[-9:]",
}


@pytest.mark.parametrize("program", UNDECIDED.values(), ids=UNDECIDED.keys())
def test_a_program_that_another_machine_may_run_otherwise_decides_nothing(program: str, sandboxes: Sandboxes) -> None:
    environment = python(sandboxes)
    episode = environment.begin(environment.prompt(0))
    reply = episode.reply(ModelMessage(text="", calls=(ToolCall("python", {"code": program}),)))
    assert (reply.done, reply.messages) == (True, ())
    assert (episode.score().task, episode.score().parts["undecided"]) == (0.0, 1.0)


def test_the_second_run_may_have_more_memory(sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    started = sandboxes.run

    def observed(kind: JobKind, job: Job) -> JobOutcome:
        limits.append(job.limits.memory_bytes)
        return started(kind, job)

    monkeypatch.setattr(sandboxes, "run", observed)
    assert run(python(sandboxes, memory_mib=256), "1").messages[0].text == "1"
    assert limits == [256 << 20, 288 << 20]


def test_calls_are_counted_over_the_dialogue(sandboxes: Sandboxes) -> None:
    environment = python(sandboxes, most_calls=2)
    texts = [message.text for message in run(environment, "1", "2", "3").messages]
    assert texts == ["1", "2", "error: more than 2 calls in one dialogue"]


def test_the_other_environment_scores_the_answer(sandboxes: Sandboxes) -> None:
    environment = python(sandboxes, problems="letters", options={"partial": True})
    prompt = environment.prompt(0)
    assert prompt.text == "sort:9694="
    assert environment.rewards is Rewards.UNIT
    assert environment.demonstration_turns(prompt) is None
    score = environment.score(prompt, "4699", finished=True)
    assert (score.task, score.parts["undecided"], score.parts["calls"]) == (1.0, 0.0, 0.0)
    episode = environment.begin(prompt)
    assert episode.score().parts["answered"] == 0.0


def test_the_version_names_interpreter_and_problems() -> None:
    family = find_family("python")
    choices: list[dict[str, JsonValue]] = [{}, {"problems": "letters"}, {"options": {"digits": 2}}, {"most_calls": 3}]
    versions = [family.facts(version=None, options=options).version for options in choices]
    assert len(set(versions)) == 4
    assert all(each.startswith(f"1+py{platform.python_version()}-") for each in versions)
    place = subprocess.run([sys.executable, "-c", "print(f'{id(None) % 4096:03x}')"], capture_output=True, check=True)
    assert f"-{place.stdout.decode().strip()}." in versions[0], "another process has the same version"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"problems": "lookup"}, "the problems of lookup have several turns"),
        ({"problems": "python"}, "python has no single answers"),
        ({"problems": "served"}, "served has no single answers"),
        ({"problems": "letters", "options": {"colour": 1}}, "environment letters: colour"),
    ],
)
def test_unsuitable_problems_are_refused(options: dict[str, JsonValue], why: str) -> None:
    with pytest.raises(BadOptions, match=why):
        load_environment("python", options=options)
