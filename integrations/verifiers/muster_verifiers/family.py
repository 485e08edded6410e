"""The environment family `verifiers`: tasks, tools and rewards of a taskset of the verifiers library.

The taskset's code runs only in the sandbox: no network, no files written, a stopped clock, seeded random numbers, and
limits of time and memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from pydantic import Field, JsonValue, ValidationError

from muster_verifiers.tasks_file import TasksFile, opening_of
from rollouts.adapters.environment import AdaptedEnvironment, JobAnswer
from rollouts.environments.datasets import FileOptions
from rollouts.environments.dialogue import GivenMessage, ModelMessage, Reply, Role, Tool, ToolCall
from rollouts.environments.errors import EnvironmentFault, UnknownEnvironment
from rollouts.environments.factory import Family, SandboxSource
from rollouts.environments.interface import Environment, Prompt, Rewards, Score
from rollouts.environments.tool_calls import text_before_calls
from rollouts.environments.tools import BAD_ARGUMENTS, MOST_CALLS, TOO_MANY_CALLS, UNKNOWN_TOOL, cut
from rollouts.sandbox import JobLimits, JobOutcome, PackageJobs

LIMITS = JobLimits(cpu=timedelta(seconds=10), wall=timedelta(seconds=60), memory_bytes=3 << 30, output_bytes=1 << 20)
"""Limits of one job, which calls all tools of a dialogue again."""
_MODULE = "muster_verifiers.job"
_MOST_NESTED = 32
_INSTALL = "install it as in docs/verifiers.md: pip install ./integrations/verifiers"


class VerifiersOptions(FileOptions):
    """Options of `verifiers`."""

    full: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Sum of weighted rewards that counts as solved. The reward is the sum divided by it, limited to 0 to 1."""


class _ToolModel(JobAnswer):
    name: str
    description: str
    parameters: dict[str, JsonValue]


class _Described(JobAnswer):
    tools: list[_ToolModel]


class _Replied(JobAnswer):
    replies: list[str | None]
    over: bool


class _Scored(JobAnswer):
    rewards: dict[str, float]
    metrics: dict[str, float]
    total: float
    failed: float


class Verifiers(AdaptedEnvironment):
    """The `verifiers` environment; see the module docstring.

    Raises:
        BadDataset: The tasks file is missing, has another digest, or has malformed rows.
        BadOptions: The taskset is missing, has other code than the file names, or is not reproducible.
        SandboxUnavailable: This machine can't run the taskset in a sandbox.
    """

    name = "verifiers"

    def __init__(self, version: str, options: VerifiersOptions, sandboxes: SandboxSource) -> None:
        self._options = options
        self._file = TasksFile(options)
        header = self._file.header
        jobs = PackageJobs(
            name="muster-verifiers",
            modules=(_MODULE,),
            libraries=("verifiers", "mcp", "openai", "pydantic", "numpy", "time_machine"),
            packages=("muster_verifiers", header.taskset),
            hint=_INSTALL,
        )
        payload: dict[str, JsonValue] = {
            "taskset": header.taskset,
            "config": header.config,
            "task_config": header.task_config,
        }
        super().__init__(version, sandboxes, jobs=jobs, payload=payload)
        outcome = self.try_out(lambda: self.run({}, limits=LIMITS), subject=f"the taskset {header.taskset}")
        try:
            described = _Described.model_validate_json(outcome.answer)
        except ValidationError as error:
            raise EnvironmentFault(f"environment verifiers: {header.taskset} does not describe its tools") from error
        self.tools = [
            Tool(name=each.name, description=each.description, parameters=each.parameters) for each in described.tools
        ]

    def size(self) -> int | None:
        """Returns the number of tasks in the file."""
        return self._file.size

    def prompt(self, index: int) -> Prompt:
        """Returns a task, whose text has the system prompt and the user's messages."""
        row = self._file.row(index)
        text = "\n\n".join(message.text for message in opening_of(row, where=f"task {index}"))
        return Prompt(index=index, text=text, data={"row": row})

    def begin(self, prompt: Prompt) -> VerifiersEpisode:
        """Begins a dialogue."""
        row = prompt.data["row"]
        return VerifiersEpisode(self, row if isinstance(row, dict) else {}, full=self._options.full)


class VerifiersEpisode:
    """A dialogue about one task.

    A message with tool calls gets the tools' results, unless a stop of the task ends the dialogue. A message without
    calls is the answer.
    """

    def __init__(self, environment: Verifiers, row: dict[str, JsonValue], *, full: float) -> None:
        self.opening: Sequence[GivenMessage] = opening_of(row, where="the task")
        self.tools: Sequence[Tool] = environment.tools
        self._environment = environment
        self._row = row
        self._full = full
        self._names = {tool.name for tool in environment.tools}
        self._messages: list[dict[str, JsonValue]] = []
        self._calls = 0
        self._undecided = False
        self._over = False
        self._score: Score | None = None

    def reply(self, message: ModelMessage) -> Reply:
        """Calls the tools of a message."""
        self._score = None
        self._calls += len(message.calls)
        calls = [self._call(number, call) for number, call in enumerate(message.calls)]
        said: dict[str, JsonValue] = {
            "text": (text_before_calls(message.text) or None) if calls else message.text,
            "finished": message.finished,
            "tokens": message.tokens,
            "calls": [*calls],
        }
        self._messages.append(said)
        if not message.finished or not calls:
            return Reply(done=True)
        found = self._replied()
        if found is None or found.over:
            return Reply(done=True, limited=found is None)
        for call, text in zip(calls, found.replies, strict=True):
            if call["reply"] is None:
                call["reply"] = BAD_ARGUMENTS if text is None else cut(text)
        said["calls"] = [*calls]
        return Reply(
            messages=[
                GivenMessage(role=Role.TOOL, text=str(call["reply"]), name=name if name in self._names else "")
                for call, name in ((call, str(call["name"])) for call in calls)
            ]
        )

    def score(self) -> Score:
        """Returns the taskset's score; 0 with `undecided` if a limit of time or memory ended a job."""
        if self._score is None:
            self._score = self._scored()
        return self._score

    def _call(self, number: int, call: ToolCall) -> dict[str, JsonValue]:
        fixed = None
        if number >= MOST_CALLS:
            fixed = TOO_MANY_CALLS
        elif call.name not in self._names:
            fixed = UNKNOWN_TOOL
        arguments: JsonValue = None if call.arguments is None else dict(call.arguments)
        if arguments is None or _is_deep(arguments):
            arguments, fixed = None, fixed or BAD_ARGUMENTS
        return {"name": call.name, "arguments": arguments, "run": fixed is None, "reply": fixed}

    def _replied(self) -> _Replied | None:
        outcome = self._run(score=False)
        try:
            return None if outcome is None else _Replied.model_validate_json(outcome.answer)
        except ValidationError:  # the taskset's code ended the job without an answer
            self._undecided = True
            return None

    def _scored(self) -> Score:
        parts = {"calls": float(self._calls), "undecided": 1.0}
        outcome = None if self._undecided else self._run(score=True)
        try:
            found = None if outcome is None else _Scored.model_validate_json(outcome.answer)
        except ValidationError:
            found = None
        if found is None:
            return Score(task=0.0, parts=parts)
        parts |= {f"reward {name}": value for name, value in found.rewards.items()}
        parts |= {f"metric {name}": value for name, value in found.metrics.items()}
        parts |= {"total": found.total, "failed": found.failed, "undecided": 0.0}
        return Score(task=min(max(found.total / self._full, 0.0), 1.0), parts=parts)

    def _run(self, *, score: bool) -> JobOutcome | None:
        """Runs a job; returns None if it ended without a result, which leaves the dialogue undecided."""
        payload: dict[str, JsonValue] = {"row": self._row, "messages": [*self._messages], "score": score}
        outcome = self._environment.run(payload, limits=LIMITS)
        if outcome.succeeded:
            return outcome
        self._undecided = True
        return None


def _is_deep(value: JsonValue) -> bool:
    """Returns whether a value is nested more than 32 times. How deep JSON can be written depends on the call stack."""
    level = [value]
    for _ in range(_MOST_NESTED):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _dependencies() -> str:
    """Returns the versions that decide replies and scores."""
    try:
        return f"py{sys.version_info[0]}.{sys.version_info[1]}.vf{version('verifiers')}.mcp{version('mcp')}"
    except PackageNotFoundError as error:
        raise UnknownEnvironment(f"environment verifiers: {error}", hint=_INSTALL) from error


def _build(version: str, options: VerifiersOptions, sandboxes: SandboxSource) -> Environment:
    return Verifiers(version, options, sandboxes)


family = Family(
    name="verifiers",
    version="1",
    summary="a taskset of the verifiers library, from a file of its tasks",
    options=VerifiersOptions,
    build=_build,
    depends_on=_dependencies,
    rewards=Rewards.UNIT,
)
