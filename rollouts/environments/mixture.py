"""Environment `mixture`: several environments with weights, so that one run trains on all of them.

The indices follow a cycle, whose number of places is the sum of the weights. Each environment has as many places as its
weight, spread evenly over the cycle. With the weights 2 and 1, the indices 0, 1, 2, 3, … are the prompts A0, B0, A1,
A2, … of the environments A and B. An environment with finitely many prompts begins again after its last prompt.

`parts_of` assigns the indices of any recipe to environments, without loading any environment.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from protocol.errors import MusterError
from protocol.wire.base import Name
from rollouts.environments.dialogue import AnswerEpisode, Episode
from rollouts.environments.errors import BadOptions
from rollouts.environments.factory import EnvironmentFacts, Family, Options, SandboxSource
from rollouts.environments.indices import END_OF_INDICES, check_index
from rollouts.environments.interface import Environment, Prompt, Rewards, Score
from rollouts.environments.registry import find_family, locate_options
from rollouts.environments.validation import CheckedEnvironment

NAME = "mixture"

_DIGEST_DIGITS = 16
_LONGEST_DEPENDENCIES = 40
"""Maximum characters for the list of all parts' dependencies in the mixture's version, which has at most 64 characters.

A longer list is left out; the digest of the parts at the end of the version covers it.
"""


class MixturePart(BaseModel):
    """One environment of a mixture."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Name
    version: Annotated[str | None, Field(min_length=1, max_length=64)] = None
    """The environment's version, with or without the suffix after `+`; None for the installed one."""
    options: dict[str, JsonValue] = {}
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of the environment's prompts in each cycle."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name == NAME:
            raise ValueError("a mixture can't be part of a mixture: list its environments here, with their weights")
        return name


class MixtureOptions(Options):
    """Options of `mixture`."""

    environments: Annotated[tuple[MixturePart, ...], Field(min_length=1, max_length=16)]
    """The environments: objects with `name`, `version`, `options` and `weight`."""

    def located(self) -> tuple[Self, tuple[Path, ...]]:
        """Returns the options with absolute paths in all parts, and the parts' files."""
        parts: list[MixturePart] = []
        files: list[Path] = []
        for number, each in enumerate(self.environments):
            with _naming(number, each.name):
                options, found = locate_options(each.name, each.options)
            parts.append(each.model_copy(update={"options": options}) if found else each)
            files += found
        return self.model_copy(update={"environments": tuple(parts)}), tuple(files)


@dataclass(frozen=True, slots=True)
class Parts:
    """Assigns an environment's indices to its parts; only a mixture has more than one part.

    Args:
        names: The parts' environments.
        weights: Number of indices of each part in a cycle.
    """

    names: tuple[str, ...]
    weights: tuple[int, ...]
    _cycle: tuple[tuple[int, int], ...]
    """For each place in the cycle: its part, and its rank among the places of that part."""

    @classmethod
    def of(cls, names: Sequence[str], weights: Sequence[int]) -> Parts:
        """Returns parts whose places are spread evenly over the cycle."""
        return cls(tuple(names), tuple(weights), _cycle_of(tuple(weights)))

    @property
    def labels(self) -> tuple[str, ...]:
        """The parts' names for people and metrics; equal names are numbered, as in `letters-1`."""
        total, seen, labels = Counter(self.names), Counter[str](), []
        for name in self.names:
            seen[name] += 1
            labels.append(name if total[name] == 1 else f"{name}-{seen[name]}")
        return tuple(labels)

    @property
    def cycle(self) -> int:
        """The number of indices after which the order of parts repeats."""
        return len(self._cycle)

    def part(self, index: int) -> int:
        """Returns the number of the part that an index belongs to."""
        return self._cycle[index % len(self._cycle)][0]

    def own_index(self, index: int) -> int:
        """Returns the index within its part, as if the part were endless.

        `Mixture` takes the result modulo the part's size.
        """
        cycles, place = divmod(index, len(self._cycle))
        part, rank = self._cycle[place]
        return cycles * self.weights[part] + rank

    def sample(self, first: int, count: int, *, most: int) -> list[int]:
        """Returns about `most` indices of a range, evenly spread within each part.

        Each part gets at most an equal share of `most`, but at least one index. If the range contains fewer indices of
        a part than its share, all of these indices are returned.

        Args:
            first: The first index of the range.
            count: The number of indices in the range.
            most: Maximum number of indices, unless there are more parts.
        """
        each = max(1, most // len(self.weights))
        places: list[list[int]] = [[] for _ in self.weights]
        for place, (part, _) in enumerate(self._cycle):
            places[part].append(place)
        found = []
        for weight, own in zip(self.weights, places, strict=True):
            candidates = _OwnIndices(first, count, weight=weight, places=own, cycle=len(self._cycle))
            found += [
                candidates[position] for position in range(0, len(candidates), max(1, -(-len(candidates) // each)))
            ]
        return sorted(found)


@dataclass(frozen=True, slots=True)
class _OwnIndices:
    """The indices of a range that belong to one part, in increasing order, computed on access."""

    first: int
    count: int
    weight: int
    places: Sequence[int]
    cycle: int

    def __len__(self) -> int:
        return self._below(self.first + self.count) - self._below(self.first)

    def __getitem__(self, position: int) -> int:
        cycles, rank = divmod(self._below(self.first) + position, self.weight)
        return cycles * self.cycle + self.places[rank]

    def _below(self, index: int) -> int:
        cycles, place = divmod(index, self.cycle)
        return cycles * self.weight + bisect_left(self.places, place)


@lru_cache(maxsize=16)
def _cycle_of(weights: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Returns part and rank of each place in the cycle, sorted by (2 rank + 1) / weight, then by part."""
    common = math.lcm(*weights)  # whole numbers sort many times faster than fractions
    steps = [common // weight for weight in weights]
    places = [(part, rank) for part, weight in enumerate(weights) for rank in range(weight)]
    return tuple(sorted(places, key=lambda place: ((2 * place[1] + 1) * steps[place[0]], place[0])))


def parts_of(name: str, options: Mapping[str, JsonValue]) -> Parts:
    """Returns the parts of a recipe's environment, without loading the environment.

    Raises:
        BadOptions: The environment is a mixture with invalid options.
    """
    if name != NAME:
        return Parts.of([name], [1])
    return _parts(family.validated(options))


class Mixture:
    """The `mixture` environment; see the module docstring."""

    name = NAME

    def __init__(self, version: str, parts: Parts, environments: Sequence[Environment]) -> None:
        self.version = version
        self._parts, self._environments = parts, environments
        self._labels = parts.labels
        self._sizes = [environment.size() for environment in environments]
        for number, size in enumerate(self._sizes):
            if size == 0:
                raise BadOptions(
                    f"environment {NAME}: {_place(number, parts.names[number])} has no prompts",
                    hint="leave it out, or change its options",
                )
        self._size = self._whole_cycles()

    def size(self) -> int | None:
        """Returns the number of indices in enough whole cycles for all prompts of every part.

        The size is None if a part is endless. Prompts of smaller parts repeat, so that the proportions of the parts
        always equal the weights.
        """
        return self._size

    def _whole_cycles(self) -> int | None:
        cycles = 1
        for size, weight in zip(self._sizes, self._parts.weights, strict=True):
            if size is None:
                return None
            cycles = max(cycles, -(-size // weight))
        return min(cycles * self._parts.cycle, END_OF_INDICES)

    def prompt(self, index: int) -> Prompt:
        """Returns the part's prompt; `data` has the part's label, index and data."""
        part = self._parts.part(check_index(index, size=self._size))
        own, size = self._parts.own_index(index), self._sizes[part]
        found = self._environments[part].prompt(own if size is None else own % size)
        data = {"environment": self._labels[part], "index": found.index, "data": found.data}
        return Prompt(index=index, text=found.text, data=data)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns the part's score."""
        return self._environment(prompt).score(_own(prompt), completion, finished=finished)

    def demonstration(self, prompt: Prompt) -> str | None:
        """Returns the part's demonstration, if it has any."""
        return self._environment(prompt).demonstration(_own(prompt))

    def _environment(self, prompt: Prompt) -> Environment:
        return self._environments[self._parts.part(prompt.index)]


class DialogueMixture(Mixture):
    """A mixture with parts that have several turns; a single answer of another part is a dialogue of one message."""

    def __init__(self, version: str, parts: Parts, environments: Sequence[CheckedEnvironment]) -> None:
        super().__init__(version, parts, environments)
        self._checked = environments

    def begin(self, prompt: Prompt) -> Episode:
        """Begins a dialogue of the part."""
        environment, own = self._checked[self._parts.part(prompt.index)], _own(prompt)
        return environment.begin(own) if environment.is_dialogue else AnswerEpisode(environment, own)

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:
        """Returns the part's demonstrated messages, if it has any."""
        environment, own = self._checked[self._parts.part(prompt.index)], _own(prompt)
        if environment.is_dialogue:
            return environment.demonstration_turns(own)
        answer = environment.demonstration(own)
        return None if answer is None else [answer]


def _own(prompt: Prompt) -> Prompt:
    """Returns the part's own prompt, with the index and the data of the part.

    Text and target length are those of `prompt`.
    """
    data = cast("Mapping[str, Any]", prompt.data)
    return replace(prompt, index=data["index"], data=data["data"])


def _parts(options: MixtureOptions) -> Parts:
    return Parts.of([each.name for each in options.environments], [each.weight for each in options.environments])


def _place(number: int, name: str) -> str:
    return f"part {number + 1} ({name})"


@contextmanager
def _naming(number: int, name: str) -> Iterator[None]:
    """Adds the part's number and name to the message of an error that its environment raises."""
    try:
        yield
    except MusterError as error:
        error.detail = f"environment {NAME}: {_place(number, name)}: {error.detail}"
        error.args = (error.detail,)
        raise


def _facts(options: MixtureOptions) -> list[EnvironmentFacts]:
    found = []
    for number, each in enumerate(options.environments):
        with _naming(number, each.name):
            found.append(find_family(each.name).facts(version=each.version, options=each.options))
    return found


def _suffix(options: MixtureOptions) -> str:
    """Returns the parts' dependencies, and a digest of names, full versions and weights.

    Full versions leave out local options, such as the paths of data sets, so the mixture's version does so too.
    """
    facts = _facts(options)
    dependencies = ".".join(sorted({find_family(each.name).depends_on() for each in options.environments} - {""}))
    content = [[each.name, found.version, each.weight] for each, found in zip(options.environments, facts, strict=True)]
    digest = hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{dependencies}.{digest}" if 0 < len(dependencies) <= _LONGEST_DEPENDENCIES else digest


def _rewards(options: MixtureOptions) -> Rewards:
    unit = any(found.rewards is Rewards.UNIT for found in _facts(options))
    return Rewards.UNIT if unit else Rewards.BINARY


def _build(version: str, options: MixtureOptions, sandboxes: SandboxSource) -> Environment:
    environments: list[CheckedEnvironment] = []
    for number, each in enumerate(options.environments):
        with _naming(number, each.name):
            found = find_family(each.name).load(version=each.version, options=each.options, sandboxes=sandboxes)
        environments.append(found)
    of = DialogueMixture if any(each.is_dialogue for each in environments) else Mixture
    return of(version, _parts(options), environments)


family = Family(
    name=NAME,
    version="1",
    summary="several environments with weights",
    options=MixtureOptions,
    build=_build,
    rewards=_rewards,
    suffix=_suffix,
)
