"""Base class of environments whose code runs as jobs of a package, in a sandbox."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from rollouts.environments.dialogue import Episode, score_of_one
from rollouts.environments.errors import BadOptions
from rollouts.environments.factory import SandboxSource
from rollouts.environments.interface import Prompt, Score
from rollouts.sandbox import Job, JobLimits, JobOutcome, PackageJobs, Preparation, PreparationFailed

_PREPARED_BYTES = 2 << 30
_T = TypeVar("_T")


class JobAnswer(BaseModel):
    """Base class of a job's answers. The environment's code controls them, so every field is checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class AdaptedEnvironment(ABC):
    """An environment with several turns and without demonstrations, which a package adapts.

    Args:
        version: The version to report.
        sandboxes: Source of sandboxes.
        jobs: The package's jobs; the first module runs them.
        payload: Parameters of the module's `prepare`, from the recipe's options.
    """

    name: ClassVar[str]

    def __init__(
        self, version: str, sandboxes: SandboxSource, *, jobs: PackageJobs, payload: Mapping[str, JsonValue]
    ) -> None:
        self.version = version
        self._sandboxes = sandboxes
        self._jobs = jobs
        self._prepared = Preparation(module=jobs.modules[0], payload=payload, memory_bytes=_PREPARED_BYTES)

    @abstractmethod
    def size(self) -> int | None:
        """Returns the number of prompts."""

    @abstractmethod
    def prompt(self, index: int) -> Prompt:
        """Returns a prompt."""

    @abstractmethod
    def begin(self, prompt: Prompt) -> Episode:
        """Begins a dialogue."""

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns the score of a dialogue with one message."""
        return score_of_one(self, prompt, completion, finished=finished)

    def demonstration(self, prompt: Prompt) -> str | None:  # noqa: ARG002 - the interface's
        """Returns None: there are no demonstrations."""
        return None

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:  # noqa: ARG002 - the interface's
        """Returns None."""
        return None

    def run(self, payload: Mapping[str, JsonValue], *, limits: JobLimits) -> JobOutcome:
        """Runs a job in the sandbox.

        Raises:
            PreparationFailed: The module's `prepare` refused the options.
            SandboxUnavailable: This machine can't run the environment in a sandbox.
        """
        job = Job(module=self._prepared.module, payload=payload, limits=limits, needs=self._prepared)
        return self._sandboxes().run(self._jobs, job)

    def try_out(self, first: Callable[[], _T], *, subject: str) -> _T:
        """Returns the result of the first job, which shows whether the adapted environment can be used.

        Args:
            first: Runs the job.
            subject: Name of the adapted environment, for messages.

        Raises:
            BadOptions: The adapted environment is not reproducible, or raised an exception.
        """
        try:
            return first()
        except PreparationFailed as error:
            raise BadOptions(
                f"environment {self.name}: {subject} can't be used: {error.detail}",
                hint=error.hint or f"docs/{self.name}.md lists what is refused, and why",
            ) from error
