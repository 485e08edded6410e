"""What an environment is: prompts by index, and a score for whatever a model answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task."""

    index: int
    """Which of the environment's prompts it is."""
    text: str
    target_length: int | None = None
    """How long the answer should be; drawn by the slot's seed, never by the environment."""
    data: Mapping[str, object] = field(default_factory=dict)
    """What the answer is checked against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a completion is worth before its length is looked at."""

    task: float
    """1.0 if the task is solved, else 0.0: there is no partial credit."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named figures behind it, for people, metrics and audit files. Two names mean something to others:

    `length`: what the length reward measures here; without it, the number of output tokens.
    `undecided`: 1.0 if a limit of time, memory or output ended the check, so that a faster or slower machine might find
    otherwise. The task counts as unsolved; no validator may call a difference in such a row forged. An environment
    whose checks have limits names it always, 0.0 too: what was unsolved on one machine may then be solved on another.
    """


class Environment(Protocol):
    """A family of tasks with verifiable rewards.

    Equal name, version and index give the same prompt everywhere and for ever, and equal prompt and completion give the
    same score: workers are paid, and slashed, by the comparison. Whatever changes either gets another version.
    """

    @property
    def name(self) -> str:
        """The family's name in the registry."""
        ...

    @property
    def version(self) -> str:
        """The family's version and, after a `+`, what else decides a score: such as `1+py3.11.0ada8d61b27fe9d9`.

        That is the interpreter or library that judges, where one does, and a digest of the options that were changed.
        """
        ...

    def size(self) -> int | None:
        """How many prompts there are, indices 0 to size - 1; None if every index below 2^63 has one."""
        ...

    def prompt(self, index: int) -> Prompt:
        """Returns a prompt without target.

        Raises:
            NoSuchPrompt: The index is negative or not below the size.
        """
        ...

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Checks an answer. Any text gives a score, in bounded time; nothing in it can raise, crash or touch anything.

        Args:
            prompt: What was asked.
            completion: The decoded output tokens, the end of sequence left out.
            finished: Whether the model ended by itself rather than at the length limit.

        Raises:
            SandboxUnavailable: The answer can't be checked on this machine: nobody's guilt, and not a score.
        """
        ...

    def demonstration(self, prompt: Prompt) -> str | None:
        """An answer to warm a model up with, always the same for a prompt; None if the family knows none.

        Args:
            prompt: With its target length where the recipe wants one; a family may keep to it or not.
        """
        ...
