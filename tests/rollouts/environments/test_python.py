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
from rollouts.sandbox import Sandboxes

OBJECTS = "class A: pass\n"


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
        "TypeError: the name of an attribute is a text",
    ),
    "guards can't be replaced": ("def __power__(a, b): return 7\n2 ** 0.5", "1.41421356237"),
    "no frames": ("g = (x for x in [])\ng.gi_frame", "Error: the name gi_frame can't be used here"),
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
