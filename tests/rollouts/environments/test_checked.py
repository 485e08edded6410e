"""Environments of other packages are checked against the interface; invalid answers and exceptions are reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollouts.environments import Environment, Prompt, Score
from rollouts.environments.errors import EnvironmentFault, NoSuchPrompt
from rollouts.environments.factory import Family, Options
from rollouts.sandbox import Sandboxes, SandboxUnavailable


class Foreign:
    """An environment whose answers are given to its constructor."""

    name, version = "foreign", "1"

    def __init__(self, **answers: Callable[..., object]) -> None:
        self._answers = answers

    def size(self) -> int | None:
        return self._answer("size", 3)  # type: ignore[return-value]  # here and below: that is what is tried

    def prompt(self, index: int) -> Prompt:
        return self._answer("prompt", Prompt(index=index, text="?"))  # type: ignore[return-value]

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        return self._answer("score", Score(task=float(finished)))  # type: ignore[return-value]

    def demonstration(self, prompt: Prompt) -> str | None:
        return self._answer("demonstration", "!")  # type: ignore[return-value]

    def _answer(self, method: str, usual: object) -> object:
        return self._answers[method]() if method in self._answers else usual


class Speechless:
    """An exception whose message cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError


def no_sandboxes() -> Sandboxes:
    """Returns no sandboxes, because none are used."""
    raise AssertionError


def family(**answers: Callable[..., object]) -> Family[Options]:
    """Returns a family that makes such an environment."""
    return Family(name="foreign", version="1", summary="", options=Options, build=lambda *_: Foreign(**answers))


def load(of: Family[Options]) -> Environment:
    """Loads the environment of a family."""
    return of.load(version=None, options={}, sandboxes=no_sandboxes)


def raising(error: BaseException) -> Callable[[], object]:
    """Returns a function that raises an error."""

    def answer() -> object:
        raise error

    return answer


ASKED: dict[str, Callable[[Environment], object]] = {
    "size": lambda environment: environment.size(),
    "prompt": lambda environment: environment.prompt(1),
    "score": lambda environment: environment.score(Prompt(index=1, text="?"), "a", finished=True),
    "demonstration": lambda environment: environment.demonstration(Prompt(index=1, text="?")),
}
NO_FIGURES: list[Any] = [float("nan"), float("inf"), 10**400, "2", None]
NO_TASKS: list[Any] = [*NO_FIGURES, 0.5, 2.0, -1.0, "1", 10**5000, Speechless()]
NO_PARTS: list[Any] = [None, 1.0, ["length"], {1: 2.0}]
BROKEN: list[tuple[str, object]] = [
    *[("size", each) for each in (-1, 2.5, "3", True)],
    *[("prompt", each) for each in (None, "?", Prompt(index=2, text="?"), Prompt(index=1, text="?", target_length=3))],
    *[("prompt", Prompt(index=1, text=each)) for each in (None, b"?", "\ud800")],  # type: ignore[arg-type]
    *[("score", each) for each in (None, 1.0, True)],
    *[("score", Score(task=each)) for each in NO_TASKS],
    *[("score", Score(task=1.0, parts={"length": each})) for each in NO_FIGURES],
    *[("score", Score(task=1.0, parts=each)) for each in NO_PARTS],
    ("demonstration", 3),
]


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize("error", [ValueError("why"), RecursionError("why"), SystemExit("why")], ids=repr)
def test_an_exception_of_an_environment_is_an_environment_fault(method: str, error: BaseException) -> None:
    environment = load(family(**{method: raising(error)}))
    with pytest.raises(
        EnvironmentFault, match=rf"environment foreign 1: {method}\(.*raised {type(error).__name__}: why"
    ):
        ASKED[method](environment)


@pytest.mark.parametrize(("method", "answer"), BROKEN)
def test_an_invalid_answer_of_an_environment_is_an_environment_fault(method: str, answer: object) -> None:
    environment = load(family(**{method: lambda: answer}))
    with pytest.raises(EnvironmentFault, match=rf"environment foreign 1: {method}\("):
        ASKED[method](environment)


@pytest.mark.parametrize("error", [NoSuchPrompt("none"), SandboxUnavailable("none"), KeyboardInterrupt()], ids=repr)
def test_exceptions_allowed_by_the_interface_are_passed_on(error: BaseException) -> None:
    environment = load(family(prompt=raising(error)))
    with pytest.raises(type(error)):
        environment.prompt(1)


@pytest.mark.parametrize("task", [0, 1, False, True])
def test_a_score_that_is_no_float_is_converted(task: int) -> None:
    found = ASKED["score"](load(family(score=lambda: Score(task=task, parts={"length": 2}))))
    assert isinstance(found, Score)
    assert (type(found.task), found.task, found.parts) == (float, task, {"length": 2})


@pytest.mark.parametrize("made", [None, 7, object()])
def test_a_family_that_returns_no_environment_is_reported(made: object) -> None:
    of = Family(name="foreign", version="1", summary="", options=Options, build=lambda *_: made)  # type: ignore[arg-type]
    with pytest.raises(
        EnvironmentFault, match="environment foreign 1 lacks the methods size, prompt, score, demonstration"
    ):
        load(of)


def test_a_family_that_raises_is_reported() -> None:
    of = Family(name="foreign", version="1", summary="", options=Options, build=lambda *_: 1 // 0)  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFault, match="environment foreign 1 can't be made: ZeroDivisionError"):
        load(of)


@pytest.mark.parametrize("version", ["", "1+2", "1 2", "1\n", "x" * 25])
def test_a_version_that_no_recipe_could_name_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        Family(name="foreign", version=version, summary="", options=Options, build=lambda *_: Foreign())
