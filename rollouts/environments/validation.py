"""Validates the results of environments against the contract in `interface.py`.

Any package may register an environment. Its results decide rewards, and its exceptions would end a task or an
examination. So every result is validated here, and a violation is reported as the package's fault, never a worker's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from protocol.errors import MusterError
from rollouts.environments.errors import EnvironmentFault
from rollouts.environments.interface import Environment, Prompt, Rewards, Score


@dataclass(frozen=True, slots=True)
class CheckedEnvironment:
    """Wraps an environment and validates its results; all methods raise `EnvironmentFault` on a violation."""

    name: str
    version: str
    inner: Environment
    rewards: Rewards = Rewards.BINARY
    """The values that the environment's scores can have."""

    def size(self) -> int | None:
        """Returns the environment's size: None, or at least 0."""
        found = self._asked("size()", self.inner.size)
        if found is None or (isinstance(found, int) and not isinstance(found, bool) and found >= 0):
            return found
        raise self._fault("size()", f"gives {shown(found)}, not None or a whole number of at least 0")

    def prompt(self, index: int) -> Prompt:
        """Returns the prompt of this index; its text is guaranteed to be encodable."""
        what = f"prompt({index})"
        found = self._asked(what, lambda: self.inner.prompt(index))
        if not isinstance(found, Prompt) or found.index != index or found.target_length is not None:
            raise self._fault(what, f"does not return a Prompt with that index and no target length: {shown(found)}")
        if not has_encoding(found.text):
            raise self._fault(what, f"returns a text that can't be encoded: {shown(found.text)}")
        return found

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns the score: a value that `rewards` allows, with finite figures."""
        what = f"score() of an answer to prompt {prompt.index}"
        found = self._asked(what, lambda: self.inner.score(prompt, completion, finished=finished))
        if not isinstance(found, Score) or not _is_figure(found.task) or not self.rewards.allows(found.task):
            raise self._fault(what, f"does not give a Score with {self._allowed(found)}: {shown(found)}")
        parts: object = found.parts
        if not isinstance(parts, Mapping):
            raise self._fault(what, f"has parts that are not a mapping: {shown(parts)}")
        for name, figure in parts.items():
            if not isinstance(name, str) or not _is_figure(figure):
                raise self._fault(
                    what, f"has the part {shown(name)} = {shown(figure)}, not a finite number with a name"
                )
        return replace(found, task=float(found.task) + 0.0)  # a plain float; -0.0 becomes 0.0

    def demonstration(self, prompt: Prompt) -> str | None:
        """Returns the environment's demonstration, if any."""
        what = f"demonstration() of prompt {prompt.index}"
        found = self._asked(what, lambda: self.inner.demonstration(prompt))
        if found is not None and not isinstance(found, str):
            raise self._fault(what, f"gives {shown(found)}, not a text or None")
        return found

    def _allowed(self, found: object) -> str:
        if self.rewards is Rewards.UNIT:
            return "a task from 0.0 to 1.0, as its family declares (rewards = unit)"
        allowed = "a task of 0.0 or 1.0, as its family declares (rewards = binary)"
        partial = isinstance(found, Score) and _is_figure(found.task) and Rewards.UNIT.allows(found.task)
        return allowed + ("; a family with partial credit declares rewards=Rewards.UNIT" if partial else "")

    def _asked(self, what: str, ask: Callable[[], object]) -> object:
        try:
            return ask()
        except MusterError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(what, f"raised {type(error).__name__}: {str(error)[:200]}") from error

    def _fault(self, what: str, why: str) -> EnvironmentFault:
        return EnvironmentFault(f"environment {self.name} {self.version}: {what} {why}")


def shown(value: object) -> str:
    """Returns a short text of a value for messages; the value's type name if `repr` fails."""
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - a third-party repr may raise anything; the repr of a huge int raises too
        return f"a {type(value).__name__}"


def _is_figure(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def has_encoding(text: object) -> bool:
    """Returns whether a value is text that a tokenizer can encode; text from JSON may have lone surrogates."""
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False
