"""Environment `python`: the problems of another environment, with a tool that runs Python.

The message without a call is the answer, which the other environment scores. Every call runs a program of its own in
the sandbox, and gets the program's output, with the value of an expression in the last line.

The output is part of the dialogue and is compared by every verifier, so it must be the same on every machine: see
`rollouts.sandbox.inside.repeatable`. Every program runs twice, in processes with different addresses and different
limits of memory. A program with two different outputs, like one that reaches a limit of time or memory, ends the
dialogue as undecided: it has no reward, and nobody is blamed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from protocol.wire.base import Name
from rollouts.environments.dialogue import DialogueEnvironment, Episode, GivenMessage, Role, Tool, score_of_one
from rollouts.environments.errors import BadOptions
from rollouts.environments.factory import EnvironmentFacts, Family, Options, SandboxSource
from rollouts.environments.interface import Environment, Prompt, Rewards, Score
from rollouts.environments.registry import find_family, locate_options
from rollouts.environments.served import NAME as SERVED
from rollouts.environments.tools import CallableTool, ToolEpisode, ToolLimitError, text_argument
from rollouts.environments.validation import CheckedEnvironment
from rollouts.sandbox import Job, JobKind, JobLimits, JobOutcome

NAME = "python"
_DIGEST_DIGITS = 16
_PAGE = 4096
"""Bytes of a page of memory; a program is loaded at the beginning of a page."""
_LONGEST_SOURCE = 16 * 1024
NO_OUTPUT = "(no output)"
TOO_LONG = f"error: the program has more than {_LONGEST_SOURCE} bytes"
_CUT = " … (cut off)"
_MORE_MEMORY = 1.125
"""The second run may have so many times the memory, so that an output that depends on the limit differs."""
_EXPRESSION = re.compile(r"\d+(?: ?[-+*] ?\d+)+")
TOOL = Tool(
    name=NAME,
    description="Runs a Python program and returns what it prints. Every program starts anew.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the program"}},
        "required": ["code"],
    },
)


class PythonOptions(Options):
    """Options of `python`."""

    problems: Name = "arithmetic"
    """The environment whose problems the model solves; it has single answers."""
    options: dict[str, JsonValue] = {}
    """Options of that environment."""
    most_calls: Annotated[int, Field(ge=1, le=256)] = 16
    """Maximum programs in a dialogue; further calls get an error as reply."""
    output_characters: Annotated[int, Field(ge=16, le=4000)] = 2000
    """Maximum characters of a program's output; the rest is cut off, and the program ends."""
    cpu_seconds: Annotated[int, Field(ge=1, le=60)] = 5
    """CPU seconds of a program; the wall-clock limit is three times as long plus 5 s."""
    memory_mib: Annotated[int, Field(ge=128, le=16384)] = 512
    """Address space of a program's process in MiB, including about 100 MiB for the interpreter; the second
    run may have an eighth more."""

    @field_validator("problems")
    @classmethod
    def _check_problems(cls, name: str) -> str:
        if name in {NAME, SERVED}:
            raise ValueError(f"{name} has no single answers: name another environment")
        return name

    def located(self) -> tuple[Self, tuple[Path, ...]]:
        """Returns the options with absolute paths in those of the problems, and their files."""
        options, files = locate_options(self.problems, self.options)
        return (self.model_copy(update={"options": options}) if files else self), files


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    output: str
    error: str
    cut: bool


class PythonProblems:
    """The `python` environment; see the module docstring."""

    name = NAME

    def __init__(
        self, version: str, options: PythonOptions, problems: CheckedEnvironment, sandboxes: SandboxSource
    ) -> None:
        self.version = version
        self._options = options
        self._problems = problems
        self._sandboxes = sandboxes
        self._limits = JobLimits(
            cpu=timedelta(seconds=options.cpu_seconds),
            wall=timedelta(seconds=3 * options.cpu_seconds + 5),
            memory_bytes=options.memory_mib << 20,
            output_bytes=64 * 1024,
        )

    def size(self) -> int | None:
        """Returns the number of problems."""
        return self._problems.size()

    def prompt(self, index: int) -> Prompt:
        """Returns a problem."""
        return self._problems.prompt(index)

    def begin(self, prompt: Prompt) -> Episode:
        """Begins a dialogue."""
        calls = 0

        def run(arguments: Mapping[str, JsonValue]) -> str:
            nonlocal calls
            source = text_argument(arguments, "code")
            calls += 1
            if calls > self._options.most_calls:
                return f"error: more than {self._options.most_calls} calls in one dialogue"
            return self._run(source)

        def judge(answer: str | None, finished: bool) -> Score:
            if answer is None:
                return Score(task=0.0, parts={"answered": 0.0})
            found = self._problems.score(prompt, answer, finished=finished)
            return Score(task=found.task, parts={"answered": 1.0, **found.parts})

        opening = [GivenMessage(role=Role.USER, text=prompt.text)]
        return ToolEpisode(opening, [CallableTool(tool=TOOL, run=run)], judge, limited=True)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns the score of an answer without calls."""
        environment: DialogueEnvironment = self
        return score_of_one(environment, prompt, completion, finished=finished)

    def demonstration(self, prompt: Prompt) -> str | None:
        """Returns the demonstrated answer of the other environment."""
        return self._problems.demonstration(prompt)

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:
        """Returns a call that computes the expression in the prompt, and the answer; None if there is no expression."""
        answer, found = self._problems.demonstration(prompt), _EXPRESSION.search(prompt.text)
        return None if answer is None or found is None else [f"{NAME}({found[0]})", answer]

    def _run(self, source: str) -> str:
        if len(source.encode("utf-8", "replace")) > _LONGEST_SOURCE:
            return TOO_LONG
        first = self._outcome(JobKind.TOOL, source)
        if first != self._outcome(JobKind.TOOL_AGAIN, source):
            raise ToolLimitError
        return first

    def _outcome(self, kind: JobKind, source: str) -> str:
        """Returns the reply to one run.

        Raises:
            ToolLimitError: A limit of time or memory ended the program, or it crashed.
        """
        payload: dict[str, JsonValue] = {
            "source": source,
            "characters": self._options.output_characters,
            "shift": kind is JobKind.TOOL_AGAIN,
        }
        limits = self._limits
        if kind is JobKind.TOOL_AGAIN:
            limits = replace(limits, memory_bytes=int(limits.memory_bytes * _MORE_MEMORY))
        job = Job(module="inside.repeatable", payload=payload, keep_output=False, limits=limits)
        outcome = self._sandboxes().run(kind, job)
        if not outcome.succeeded:
            raise ToolLimitError
        return _reply(outcome)


def _reply(outcome: JobOutcome) -> str:
    try:
        found = _Result.model_validate_json(outcome.answer)
    except ValidationError as error:
        raise ToolLimitError from error
    text = found.output + (_CUT if found.cut else "")
    if found.error:
        text = f"{text.rstrip()}\n{found.error}".lstrip()
    return text.rstrip() or NO_OUTPUT


def _inner_facts(options: PythonOptions) -> EnvironmentFacts:
    return find_family(options.problems).facts(version=None, options=options.options)


def _interpreter() -> str:
    """Returns the build of Python: its release, whose error messages are replies, and the place of None in a page.

    The order of a set with None or types depends on their addresses, of which a build determines the last digits.
    """
    return f"py{platform.python_version()}-{id(None) % _PAGE:03x}"


def _suffix(options: PythonOptions) -> str:
    """Returns the interpreter, and a digest of the problems and the options."""
    own = options.model_dump(mode="json", exclude_defaults=True, exclude={"problems", "options"})
    content = [options.problems, _inner_facts(options).version, own]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{_interpreter()}.{hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_DIGITS]}"


def _rewards(options: PythonOptions) -> Rewards:
    return _inner_facts(options).rewards


def _build(version: str, options: PythonOptions, sandboxes: SandboxSource) -> Environment:
    problems = find_family(options.problems).load(version=None, options=options.options, sandboxes=sandboxes)
    if problems.is_dialogue:
        raise BadOptions(
            f"environment {NAME}: the problems of {options.problems} have several turns",
            hint="name an environment with single answers, such as math",
        )
    return PythonProblems(version, options, problems, sandboxes)


family = Family(
    name=NAME,
    version="1",
    summary="problems of another environment, with a tool that runs Python",
    options=PythonOptions,
    build=_build,
    rewards=_rewards,
    suffix=_suffix,
)
