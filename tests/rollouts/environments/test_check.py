"""`muster env check`: the shipped families pass, and each violation of the contract is reported."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from rollouts.environments.check import CheckReport, CheckSettings, check_environment
from rollouts.environments.errors import BadOptions, EnvironmentFault
from tests.kit.devnet import run_muster
from tests.rollouts.environments.conftest import WriteRows, row

PACKAGE = """
import ctypes, datetime, random, threading, time
from rollouts.environments import Prompt, Score
from rollouts.environments.factory import Family, Options
from rollouts.environments.indices import check_index

class Faulty:
    name, version = "faulty", "1"
    made = 0
    def __init__(self, kind): self.kind = kind
    def size(self): return 50
    def prompt(self, index):
        if self.kind != "outside":
            check_index(index, size=50)
        Faulty.made += 1
        text = f"{index}?"
        match self.kind:
            case "hash": text += str(hash(text))
            case "date": text += str(datetime.date.today().year)
            case "state": text += str(Faulty.made)
            case "locale": text += open(__file__).encoding
            case "random": text += str(random.random())
            case "raises" if index == 3: raise RuntimeError("no such puzzle")
            case "hangs" if index == 3: time.sleep(60)
            case "allocates" if index == 3: self.kept = bytes(1 << 40)
            case "prints": print("hello"); ctypes.CDLL(None).puts(b"hello")
            case "exits" if index == 3: import os; os._exit(9)
        return Prompt(index=index, text=text, data={"object": object()})
    def score(self, prompt, completion, *, finished):
        right = completion == str(prompt.index)
        match self.kind:
            case "nan": return Score(task=float("nan"))
            case "any": right = bool(completion)
            case "undecided": return Score(task=float(random.random() < 0.5), parts={"undecided": 1.0})
            case "text" if "\\x00" in completion: raise ValueError("a zero byte")
        return Score(task=float(right))
    def demonstration(self, prompt): return str(prompt.index)

class FaultyOptions(Options):
    kind: str = "good"

def build(version, options, sandboxes): return Faulty(options.kind)
family = Family(name="faulty", version="1", summary="", options=FaultyOptions, build=build)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package with an environment that violates its contract in a chosen way."""
    (tmp_path / "muster_test_faulty.py").write_text(PACKAGE)
    info = tmp_path / "muster_test_faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: muster-test-faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[muster.environments]\nfaulty = muster_test_faulty:family\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def checked(kind: str, *, timeout_s: float = 30.0) -> CheckReport:
    settings = CheckSettings(items=6, item_timeout=timedelta(seconds=timeout_s))
    return check_environment("faulty", options={"kind": kind}, settings=settings)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("kind", ["good", "prints", "undecided"])
def test_a_sound_environment_passes_the_check(kind: str) -> None:
    report = checked(kind)
    assert report.passed, report
    assert (report.items, report.size, report.figures["distinct_prompts"]) == (6, 50, 1.0)
    assert report.figures["correct_demonstrations"] == 1.0 or kind == "undecided"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("hash", "prompt 0: text differs"),
        ("date", "prompt 0: text differs"),
        ("state", "prompt 0: text differs"),
        ("locale", "prompt 0: text differs"),
        ("random", "prompt 0: text differs"),
        ("outside", "prompt(-1) returns a prompt; it must raise NoSuchPrompt"),
        ("any", "is a correct answer to 6 of 6 prompts"),
    ],
)
def test_a_violated_property_is_reported_with_the_first_prompt(kind: str, fault: str) -> None:
    report = checked(kind)
    assert not report.passed
    [found] = [each.fault for each in report.properties if each.fault]
    assert fault in found


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("raises", r"prompt\(3\) raised RuntimeError: no such puzzle"),
        ("text", "score.. of an answer to prompt 0 raised ValueError: a zero byte"),
        ("nan", "does not give a Score with a task of 0.0 or 1.0"),
        ("hangs", "prompt 3 and its scores took more than 2 s"),
        ("allocates", r"raised MemoryError|needs more than 4096 MiB of memory"),
        ("exits", "the process that made its items ended with 9"),
    ],
)
def test_an_environment_that_raises_is_reported_with_the_prompt(kind: str, said: str) -> None:
    with pytest.raises(EnvironmentFault, match=said):
        checked(kind, timeout_s=2.0 if kind == "hangs" else 30.0)


@pytest.mark.parametrize("name", ["letters", "arithmetic"])
def test_the_generated_families_pass_from_the_command_line(name: str) -> None:
    assert run_muster("env", "check", name, "--items", "50", "--json").json()["passed"]


def test_the_file_based_families_pass(write_rows: WriteRows) -> None:
    maths = write_rows([row({"ground_truth": answer}) for answer in ("7", "\\frac12", "x+1")])
    assert check_environment("math", options=maths).passed
    tests = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}
    code = write_rows([row(tests, task_type="verifiable_code")])
    assert check_environment("code", options=code).passed


@pytest.mark.usefixtures("package")
def test_the_command_fails_for_a_broken_environment() -> None:
    found = run_muster("env", "check", "faulty", "-o", "kind=any", "--items", "5", "--json")
    assert found.code == 1
    assert not json.loads(found.out)["passed"]


def test_invalid_options_are_refused_before_an_environment_is_made() -> None:
    with pytest.raises((BadOptions, EnvironmentFault), match=r"colour"):
        check_environment("letters", options={"colour": "red"})
