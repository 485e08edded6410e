"""The environment family `openenv`: an OpenEnv environment class, one message for each step.

The class runs only in the sandbox: no network, no files written, a stopped clock, seeded random numbers, and limits of
time and memory. Every job makes a new environment and repeats the steps so far.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from pydantic import Field, JsonValue, ValidationError, field_validator

from rollouts.adapters.environment import AdaptedEnvironment, JobAnswer
from rollouts.environments.code_digest import code_digest
from rollouts.environments.dialogue import GivenMessage, ModelMessage, Reply, Role, Tool
from rollouts.environments.errors import BadOptions, EnvironmentFault, UnknownEnvironment
from rollouts.environments.factory import Family, Options, SandboxSource
from rollouts.environments.indices import check_index
from rollouts.environments.interface import Environment, Prompt, Rewards, Score
from rollouts.environments.tools import cut
from rollouts.sandbox import JobLimits, PackageJobs, SandboxUnavailable

LIMITS = JobLimits(cpu=timedelta(seconds=10), wall=timedelta(seconds=60), memory_bytes=3 << 30, output_bytes=1 << 20)
"""Limits of one job, which repeats all steps of a dialogue."""
_MODULE = "muster_openenv.job"
_INSTALL = "install it as in docs/openenv.md: pip install --no-deps ./integrations/openenv openenv-core==0.3.0"
_MOST_CONFIG = 16 * 1024
"""Maximum characters of the configurations; a sandbox's server gets them in one packet."""
_CLASS = r"^[A-Za-z_][\w.]{0,127}:[A-Za-z_]\w{0,63}$"
_ClassPath = Annotated[str, Field(pattern=_CLASS)]


class Total(StrEnum):
    """Rule by which the rewards of the steps become one."""

    SUM = "sum"
    LAST = "last"


class OpenEnvOptions(Options):
    """Options of `openenv`."""

    environment: _ClassPath
    """The environment class, such as `maze_env.server.maze_env_environment:MazeEnvironment`."""
    action: _ClassPath
    """Its class of actions, such as `maze_env.models:MazeAction`."""
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the package's files: `muster-openenv PACKAGE` prints it."""
    configs: Annotated[tuple[dict[str, JsonValue], ...], Field(min_length=1, max_length=1000)] = ({},)
    """Keyword arguments of the class. Prompt i has configuration i mod n, where n is their number."""
    seeds: Annotated[int, Field(ge=1, le=2**31)] = 1
    """Number of seeds. Prompt i has seed i div n. There are n times as many prompts as seeds."""
    instruction: Annotated[str, Field(max_length=8192)] = ""
    """Text before the first observation, which explains the actions."""
    field: Annotated[str, Field(max_length=64)] = ""
    """Field of the action that a message fills; if empty, a message is the action as a JSON object."""
    show: tuple[str, ...] = ()
    """Fields of the observation that the model reads; if empty, all but done, reward and metadata."""
    total: Total = Total.SUM
    """Which rewards count: the sum of all steps, or the last one."""
    full: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Total that counts as solved. The reward is the total divided by it, limited to 0 to 1."""

    @field_validator("configs")
    @classmethod
    def _check_size(cls, configs: tuple[dict[str, JsonValue], ...]) -> tuple[dict[str, JsonValue], ...]:
        if len(json.dumps(configs)) > _MOST_CONFIG:
            raise ValueError(f"they have more than {_MOST_CONFIG} characters")
        return configs


class _Played(JobAnswer):
    text: str
    rewards: list[float]
    bad: int
    done: bool


class OpenEnv(AdaptedEnvironment):
    """The `openenv` environment; see the module docstring.

    Raises:
        BadOptions: The package is missing, has other code than the options name, or is not reproducible.
        SandboxUnavailable: This machine can't run the environment in a sandbox.
    """

    name = "openenv"

    def __init__(self, version: str, options: OpenEnvOptions, sandboxes: SandboxSource) -> None:
        self._options = options
        package = options.environment.partition(":")[0].partition(".")[0]
        found = code_digest(package)
        if found != options.code:
            raise BadOptions(
                f"environment openenv: the package {package} has the code digest {found} here, but the options name "
                f"{options.code}",
                hint=f"install the release of {package} with which the recipe was written, or write a new recipe",
            )
        if options.action.partition(":")[0].partition(".")[0] != package:
            raise BadOptions("environment openenv: environment and action must be in one package")
        jobs = PackageJobs(
            name="muster-openenv",
            modules=(_MODULE,),
            libraries=("openenv", "pydantic", "numpy", "time_machine"),
            packages=("muster_openenv", package),
            hint=_INSTALL,
        )
        payload: dict[str, JsonValue] = {
            "environment": options.environment,
            "action": options.action,
            "field": options.field,
            "show": [*options.show],
            "configs": [*options.configs],
            "seeds": options.seeds,
        }
        super().__init__(version, sandboxes, jobs=jobs, payload=payload)
        self.try_out(lambda: self.played(0, []), subject=options.environment)

    def size(self) -> int | None:
        """Returns the number of configurations times the number of seeds."""
        return len(self._options.configs) * self._options.seeds

    def prompt(self, index: int) -> Prompt:
        """Returns the instruction and the first observation."""
        played = self.played(check_index(index, size=self.size()), [])
        if played is None:
            raise SandboxUnavailable(
                f"environment openenv: prompt {index} was not ready within {LIMITS.cpu_seconds} s of CPU time and "
                f"{LIMITS.memory_bytes >> 30} GiB of memory",
                hint="choose smaller configurations",
            )
        first = played.text
        text = f"{self._options.instruction}\n\n{first}" if self._options.instruction else first
        return Prompt(index=index, text=text)

    def begin(self, prompt: Prompt) -> OpenEnvEpisode:
        """Begins a dialogue."""
        return OpenEnvEpisode(self, prompt, self._options)

    def played(self, index: int, messages: Sequence[str]) -> _Played | None:
        """Repeats the steps of a prompt; returns None if a limit of time or memory ended the job.

        Raises:
            EnvironmentFault: The environment can't be reset.
        """
        seed, number = divmod(index, len(self._options.configs))
        payload: Mapping[str, JsonValue] = {
            "config": self._options.configs[number],
            "seed": seed,
            "messages": [*messages],
        }
        outcome = self.run(payload, limits=LIMITS)
        try:
            return _Played.model_validate_json(outcome.answer) if outcome.succeeded else None
        except ValidationError as error:
            raise EnvironmentFault(f"environment openenv: prompt {index} gives no text or rewards") from error


class OpenEnvEpisode:
    """A dialogue: each message is an action, and each reply an observation."""

    def __init__(self, environment: OpenEnv, prompt: Prompt, options: OpenEnvOptions) -> None:
        self.opening: Sequence[GivenMessage] = [GivenMessage(role=Role.USER, text=prompt.text)]
        self.tools: Sequence[Tool] = ()
        self._environment = environment
        self._index = prompt.index
        self._options = options
        self._messages: list[str] = []
        self._played: _Played | None = None
        self._undecided = False

    def reply(self, message: ModelMessage) -> Reply:
        """Takes a step; a message that was cut off is none."""
        if not message.finished or self._undecided:
            return Reply(done=True)
        self._messages.append(message.text)
        self._played = self._environment.played(self._index, self._messages)
        if self._played is None:
            self._undecided = True
            return Reply(done=True, limited=True)
        return Reply(messages=[GivenMessage(role=Role.USER, text=cut(self._played.text))], done=self._played.done)

    def score(self) -> Score:
        """Returns the total of the rewards, divided by `full`; 0 with `undecided` if a limit ended a step."""
        played = self._played
        if self._undecided or played is None:
            return Score(task=0.0, parts={"steps": 0.0, "undecided": float(self._undecided)})
        rewards = played.rewards or [0.0]
        total = round(sum(rewards) if self._options.total is Total.SUM else rewards[-1], 6)
        parts = {
            "steps": float(len(played.rewards)),
            "bad": float(played.bad),
            "done": float(played.done),
            "total": total,
            "undecided": 0.0,
        }
        return Score(task=min(max(total / self._options.full, 0.0), 1.0), parts=parts)


def _dependencies() -> str:
    """Returns the versions that decide observations and rewards."""
    python = f"py{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("openenv-core", "openenv"):
        try:
            return f"{python}.oe{version(name)}"
        except PackageNotFoundError:
            continue
    raise UnknownEnvironment("environment openenv: OpenEnv is not installed", hint=_INSTALL)


def _build(version: str, options: OpenEnvOptions, sandboxes: SandboxSource) -> Environment:
    return OpenEnv(version, options, sandboxes)


family = Family(
    name="openenv",
    version="1",
    summary="an in-process environment class of OpenEnv",
    options=OpenEnvOptions,
    build=_build,
    depends_on=_dependencies,
    rewards=Rewards.UNIT,
)
