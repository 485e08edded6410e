"""Interface of environments: prompts by index, and scores of completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Rewards(StrEnum):
    """The values that `Score.task` of an environment can have; its family declares them."""

    BINARY = "binary"
    """1.0 if the task is solved, else 0.0."""
    UNIT = "unit"
    """Any value from 0.0 to 1.0, for partial credit; 1.0 means solved."""

    def allows(self, task: float) -> bool:
        """Returns whether an environment with these rewards may give this score; never true for NaN and infinities."""
        return task in {0.0, 1.0} if self is Rewards.BINARY else 0.0 <= task <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task."""

    index: int
    """Index in the environment."""
    text: str
    target_length: int | None = None
    """Desired length of the answer; drawn by the slot's seed, never by the environment."""
    data: Mapping[str, object] = field(default_factory=dict)
    """Data for checking the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score of a completion before any length reward."""

    task: float
    """1.0 if the task is solved, else 0.0; an environment with `unit` rewards gives any value from 0.0 to 1.0.

    Validators compare this value to the last bit. So compute it from whole numbers, with `+ - * /` and `math.sqrt` in a
    fixed order: `math.exp`, `math.log`, `**` with fractions, numpy's sums and the order of a set differ between
    machines.
    """
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named figures for people, metrics and audit files. Two names have a defined meaning:

    `length`: the length that the length reward measures; default: the number of output tokens.
    `undecided`: 1.0 if a time, memory or output limit ended the check, so that another machine may get another result.
    The task counts as unsolved, and no validator treats a difference in such a row as forgery. An environment whose
    checks have limits must always include `undecided`, also as 0.0. From its presence, validators see that another
    machine may solve a task that was unsolved on this machine.
    """


class Environment(Protocol):
    """A family of tasks with verifiable rewards.

    Equal name, version and index always give the same prompt, and equal prompt and completion the same score, to the
    last bit: nodes are paid, and slashed, by this comparison. Any change of a prompt or a score needs a new version.
    """

    @property
    def name(self) -> str:
        """The family's name in the registry."""
        ...

    @property
    def version(self) -> str:
        """The family's version and a suffix after a `+`, such as `1+py3.11.0ada8d61b27fe9d9`.

        The suffix names the interpreter or library that scores, if any, and a digest of the options that differ from
        defaults.
        """
        ...

    def size(self) -> int | None:
        """Returns the number of prompts, with indices from 0; None if every index below 2^63 has a prompt."""
        ...

    def prompt(self, index: int) -> Prompt:
        """Returns a prompt without target length.

        Raises:
            NoSuchPrompt: The index is negative or not below the size.
        """
        ...

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Scores an answer.

        The method must return in bounded time for any text, and must not raise an exception because of the text's
        content.

        Args:
            prompt: The prompt.
            completion: The decoded output tokens, without the end token.
            finished: Whether the model ended by itself rather than at the length limit.

        Raises:
            SandboxUnavailable: This machine has no sandbox for scoring; the answer gets no score, and no node is at
                fault.
        """
        ...

    def demonstration(self, prompt: Prompt) -> str | None:
        """Returns the example answer for supervised warm-up, always equal for a prompt; None if there is none.

        Args:
            prompt: The prompt, with its target length if the recipe has targets; a family may ignore the target.
        """
        ...
