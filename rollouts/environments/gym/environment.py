"""Environment `reasoning-gym`: one dataset of the reasoning-gym library with its options.

The library runs only in the sandbox: some of its scorers run an answer as code, others take very long on some answers,
and items depend on hash seed, clock and global random numbers, which the sandbox fixes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Mapping
from datetime import timedelta
from threading import Lock
from typing import Annotated

from cachetools import LRUCache, cached
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from rollouts.environments.errors import BadOptions, EnvironmentFault
from rollouts.environments.factory import Family, Options, SandboxSource
from rollouts.environments.gym.answers import AnswerPlace, is_admissible
from rollouts.environments.gym.datasets import KEEPS_CLASS_STATE, check_name, installed_version, size_of
from rollouts.environments.indices import check_index
from rollouts.environments.interface import Environment, Prompt, Rewards, Score
from rollouts.sandbox import (
    Job,
    JobEnding,
    JobKind,
    JobLimits,
    JobOutcome,
    Preparation,
    PreparationFailed,
    SandboxUnavailable,
)

MODULE = "inside.gym.dataset"

LIMITS = JobLimits(cpu=timedelta(seconds=10), wall=timedelta(seconds=60), memory_bytes=1 << 30, output_bytes=64 * 1024)
"""Limits of scoring one answer. A right answer takes 20 ms or less, with the default configurations."""

PROMPT_LIMITS = JobLimits(cpu=timedelta(seconds=30), wall=timedelta(seconds=120), memory_bytes=2 << 30)
"""Limits of making one prompt. The slowest dataset takes 0.2 s with its default configuration."""

_CACHE_BYTES = 16 << 20
"""Size of each environment's cache of prompts; a prompt takes a few KiB with most datasets, and up to 4 MiB."""
_PROMPT_OVERHEAD = 1024
"""Bytes of a cached prompt besides its texts, rounded up."""
_MOST_CONFIG = 8192
_CONFIG_TEXT = re.compile(r"/|[A-Za-z0-9 _.,+*<>&|^~%=-]{1,100}", re.ASCII)
"""Texts that a configuration may contain. The library builds expressions and paths from some of these texts, so
brackets, quotes and folders are refused.
"""


class GymOptions(Options):
    """Options of `reasoning-gym`."""

    dataset: str
    """Name of the dataset."""
    config: dict[str, JsonValue] = {}
    """The dataset's configuration, without seed and size."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Prompt `index` is drawn with `seed + index`, so neighbouring seeds share prompts."""
    answer: AnswerPlace = AnswerPlace.TAGS
    """Part of the completion that is the answer."""
    instruct: bool = True
    """Whether the prompt ends with a sentence that says where the answer has to be."""
    solved_at: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Score from which an answer counts as solved; the reward of a solved answer is 1."""
    partial: bool = True
    """Whether an unsolved answer earns its score; if False, an unsolved answer earns 0."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Made(_Strict):
    question: str
    answer: str | None
    entry: str


class _Scored(_Strict):
    score: float | None = None
    fault: str = ""


class Gym:
    """The `reasoning-gym` environment; see the module docstring.

    Raises:
        BadOptions: There is no such dataset, or the dataset refuses the configuration.
        SandboxUnavailable: This machine can't run the library in a sandbox.
    """

    name = "reasoning-gym"

    def __init__(self, version: str, options: GymOptions, sandboxes: SandboxSource) -> None:
        self.version = version
        self._options = options
        self._sandboxes = sandboxes
        self._dataset = prepared(options)
        self._size = size_of(options.dataset)
        self._was_made = False
        cache: LRUCache[Hashable, Prompt] = LRUCache(_CACHE_BYTES, getsizeof=_bytes_of)
        self._cached = cached(cache, lock=Lock())(self._make)
        try:
            self._cached(0)
        except PreparationFailed as error:
            raise BadOptions(
                f"environment reasoning-gym: the dataset {options.dataset} can't be made: {error.detail}",
                hint=error.hint or "config has the fields of the dataset's configuration class, without seed and size",
            ) from error
        self._was_made = True

    def size(self) -> int | None:
        """Returns 2^31 - 1, or 10,000 for datasets whose set-up grows with their size."""
        return self._size

    def prompt(self, index: int) -> Prompt:
        """Returns the dataset's question and, with `instruct`, a sentence about the answer's place."""
        return self._cached(check_index(index, size=self._size))

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns the dataset's score; 0 for an answer that was cut off, is missing, or is not admissible."""
        given = self._options.answer.extract(completion)
        expected = prompt.data["answer"]
        parts = {"finished": float(finished), "answered": float(given is not None), "score": 0.0, "undecided": 0.0}
        if given is None or not finished:
            return Score(task=0.0, parts=parts)
        if not is_admissible(self._options.dataset, given, expected=None if expected is None else str(expected)):
            return Score(task=0.0, parts=parts | {"admissible": 0.0})
        payload: dict[str, JsonValue] = {"index": prompt.index, "entry": str(prompt.data["entry"]), "given": given}
        outcome = self._run(payload, LIMITS)
        score = _score(outcome)
        solved = score >= self._options.solved_at
        task = 1.0 if solved else score if self._options.partial else 0.0
        return Score(task=task, parts=parts | {"score": score, "undecided": float(outcome.undecided)})

    def demonstration(self, prompt: Prompt) -> str | None:
        """Returns the dataset's own answer; None if it is missing or not admissible."""
        answer = prompt.data["answer"]
        if answer is None or not is_admissible(self._options.dataset, str(answer).strip(), expected=str(answer)):
            return None
        return self._options.answer.demonstrate(str(answer))

    def _make(self, index: int) -> Prompt:
        outcome = self._run({"index": index}, PROMPT_LIMITS)
        if outcome.undecided or outcome.ending is JobEnding.KILLED:  # by the kernel, if the machine ran out of memory
            raise SandboxUnavailable(
                f"environment reasoning-gym: prompt {index} of {self._options.dataset} was not ready within "
                f"{PROMPT_LIMITS.cpu_seconds} s of CPU time and {PROMPT_LIMITS.memory_bytes >> 30} GiB of memory",
                hint="choose a configuration with smaller puzzles",
            )
        try:
            made = _Made.model_validate_json(outcome.answer)
        except ValidationError as error:
            raise EnvironmentFault(
                f"environment reasoning-gym: the dataset {self._options.dataset} has no prompt {index}: "
                f"{outcome.errors.decode(errors='replace').strip()[-200:]}",
                hint="choose another configuration",
            ) from error
        instruction = self._options.answer.instruction if self._options.instruct else ""
        text = f"{made.question}\n\n{instruction}" if instruction else made.question
        return Prompt(index=index, text=text, data={"answer": made.answer, "entry": made.entry})

    def _run(self, payload: Mapping[str, JsonValue], limits: JobLimits) -> JobOutcome:
        job = Job(module=MODULE, payload=payload, limits=limits, needs=self._dataset)
        try:
            return self._sandboxes().run(JobKind.GYM, job)
        except PreparationFailed as error:
            if not self._was_made:
                raise
            raise SandboxUnavailable(
                f"environment reasoning-gym: the dataset {self._options.dataset} was made before, but can't be made "
                f"again: {error.detail}",
                hint="this machine is overloaded or lacks memory: stop other programs",
            ) from error


def prepared(options: GymOptions) -> Preparation:
    """Returns the preparation by which a sandbox's server makes the dataset.

    Raises:
        BadOptions: There is no such dataset, or the configuration has values that are unsafe to pass to the library.
    """
    payload: dict[str, JsonValue] = {
        "dataset": check_name(options.dataset),
        "config": _checked_config(options.config),
        "seed": options.seed,
        "size": size_of(options.dataset),
    }
    group = options.dataset if options.dataset in KEEPS_CLASS_STATE else None
    return Preparation(module=MODULE, group=group, payload=payload)


def _score(outcome: JobOutcome) -> float:
    """Returns the library's score, limited to [0, 1]; 0 if the job failed or the library gave no valid score."""
    if not outcome.succeeded:
        return 0.0
    try:
        score = _Scored.model_validate_json(outcome.answer).score
    except ValidationError:  # such as infinity or NaN
        return 0.0
    return 0.0 if score is None else min(max(score, 0.0), 1.0)


def _checked_config(config: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns the configuration if it is safe to pass to the library, which evaluates some texts.

    Raises:
        BadOptions: The configuration names seed or size, is too large, or has a text with unusual characters.
    """
    if reserved := {"seed", "size"} & set(config):
        raise BadOptions(
            f"environment reasoning-gym: config: {' and '.join(sorted(reserved))} can't be set there",
            hint="seed is an option of its own; the size is fixed",
        )
    if len(json.dumps(config)) > _MOST_CONFIG:
        raise BadOptions(
            f"environment reasoning-gym: config has more than {_MOST_CONFIG} characters", hint="shorten its lists"
        )
    for text in _texts(config):
        if not _CONFIG_TEXT.fullmatch(text) or ".." in text:
            raise BadOptions(
                f"environment reasoning-gym: config: the text {text[:80]!r} is not allowed",
                hint="texts have up to 100 letters, digits, spaces and some signs, but no brackets, quotes or folders",
            )
    return config


def _texts(value: JsonValue) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for each in value for text in _texts(each)]
        case dict():
            return [text for key, each in value.items() for text in [key, *_texts(each)]]
        case _:
            return []


def _bytes_of(prompt: Prompt) -> int:
    return _PROMPT_OVERHEAD + sum(map(sys.getsizeof, (prompt.text, *prompt.data.values())))


def _build(version: str, options: GymOptions, sandboxes: SandboxSource) -> Environment:
    return Gym(version, options, sandboxes)


family = Family(
    name="reasoning-gym",
    version="1",
    summary="a dataset of the reasoning-gym library: puzzles, algebra, logic, games",
    options=GymOptions,
    build=_build,
    depends_on=installed_version,
    rewards=lambda options: Rewards.UNIT if options.partial else Rewards.BINARY,
)
