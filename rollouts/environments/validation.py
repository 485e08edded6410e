"""Holds an environment to what `interface.py` says, whoever wrote it.

A package may register anything. What it returns decides rewards, and what it raises would end a task or an
examination; so each answer is looked at once, here, and what breaks the rules is the package's fault by name, never a
worker's guilt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from protocol.errors import MusterError
from rollouts.environments.errors import EnvironmentFault
from rollouts.environments.interface import Environment, Prompt, Score


@dataclass(frozen=True, slots=True)
class CheckedEnvironment:
    """An environment whose every answer is one; all methods raise `EnvironmentFault` where it is not."""

    name: str
    version: str
    inner: Environment

    def size(self) -> int | None:
        """As the environment says, 0 or more."""
        found = self._asked("size()", self.inner.size)
        if found is None or (isinstance(found, int) and not isinstance(found, bool) and found >= 0):
            return found
        raise self._fault("size()", f"gives {shown(found)}, and not None or a whole number from 0 on")

    def prompt(self, index: int) -> Prompt:
        """Its prompt of this index, which a tokenizer can take."""
        what = f"prompt({index})"
        found = self._asked(what, lambda: self.inner.prompt(index))
        if not isinstance(found, Prompt) or found.index != index or found.target_length is not None:
            raise self._fault(what, f"gives no Prompt of that index, without target: {shown(found)}")
        if not _has_encoding(found.text):
            raise self._fault(what, f"has no text that can be encoded: {shown(found.text)}")
        return found

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Its score: 0.0 or 1.0, and figures that are finite."""
        what = f"score() of an answer to prompt {prompt.index}"
        found = self._asked(what, lambda: self.inner.score(prompt, completion, finished=finished))
        if not isinstance(found, Score) or not _is_figure(found.task) or found.task not in {0.0, 1.0}:
            raise self._fault(what, f"gives no Score with a task of 0.0 or 1.0: {shown(found)}")
        parts: object = found.parts
        if not isinstance(parts, Mapping):
            raise self._fault(what, f"has no parts by name: {shown(parts)}")
        for name, figure in parts.items():
            if not isinstance(name, str) or not _is_figure(figure):
                raise self._fault(what, f"has the part {shown(name)} = {shown(figure)}, no finite number by a name")
        return found if type(found.task) is float else replace(found, task=float(found.task))

    def demonstration(self, prompt: Prompt) -> str | None:
        """Its answer to warm up with, if it has one."""
        what = f"demonstration() of prompt {prompt.index}"
        found = self._asked(what, lambda: self.inner.demonstration(prompt))
        if found is not None and not isinstance(found, str):
            raise self._fault(what, f"gives {shown(found)}, and not a text or None")
        return found

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
    """A short text of anything, for messages; of what has none, the name of its type."""
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - a stranger's may raise anything, and so does that of a number of 5,000 digits
        return f"a {type(value).__name__}"


def _is_figure(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all that floats reach
        return False


def _has_encoding(text: object) -> bool:
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False
