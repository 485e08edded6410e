"""Validates the results of environments against the contract in `interface.py`.

Any package may register an environment. Its results decide rewards, and its exceptions would end a task or an
examination. So every result is validated here, and a violation is reported as the package's fault, never a worker's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocol.errors import MusterError, Unavailable
from rollouts.environments.dialogue import Episode, GivenMessage, ModelMessage, Reply, Role, Tool
from rollouts.environments.errors import BadDataset, EnvironmentFault, NoSuchPrompt
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
        found = self.asked("size()", self.inner.size)
        if found is None or (isinstance(found, int) and not isinstance(found, bool) and found >= 0):
            return found
        raise self.fault("size()", f"gives {shown(found)}, not None or a whole number of at least 0")

    def prompt(self, index: int) -> Prompt:
        """Returns the prompt of this index; its text is guaranteed to be encodable."""
        what = f"prompt({index})"
        found = self.asked(what, lambda: self.inner.prompt(index), passes=(NoSuchPrompt,))
        if not isinstance(found, Prompt) or found.index != index or found.target_length is not None:
            raise self.fault(what, f"does not return a Prompt with that index and no target length: {shown(found)}")
        if not has_encoding(found.text):
            raise self.fault(what, f"returns a text that can't be encoded: {shown(found.text)}")
        return found

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns the score: a value that `rewards` allows, with finite figures."""
        what = f"score() of an answer to prompt {prompt.index}"
        found = self.asked(what, lambda: self.inner.score(prompt, completion, finished=finished))
        return self.checked_score(what, found)

    def demonstration(self, prompt: Prompt) -> str | None:
        """Returns the environment's demonstration, if any."""
        what = f"demonstration() of prompt {prompt.index}"
        found = self.asked(what, lambda: self.inner.demonstration(prompt))
        if found is not None and not isinstance(found, str):
            raise self.fault(what, f"gives {shown(found)}, not a text or None")
        return found

    @property
    def is_dialogue(self) -> bool:
        """Whether the environment has several turns."""
        return callable(getattr(self.inner, "begin", None))

    def begin(self, prompt: Prompt) -> CheckedEpisode:
        """Begins a dialogue, whose results are validated too.

        Raises:
            EnvironmentFault: The environment has no dialogues, or breaks its contract.
        """
        what = f"begin() of prompt {prompt.index}"
        if not self.is_dialogue:
            raise EnvironmentFault(
                f"environment {self.name} {self.version} has no dialogues",
                hint="remove dialogue from the recipe, or choose an environment with several turns",
            )
        inner: Any = self.inner
        episode = self.asked(what, lambda: inner.begin(prompt))
        if not isinstance(episode, Episode):
            raise self.fault(what, f"does not return an Episode: {shown(episode)}")
        return CheckedEpisode(self, prompt, episode)

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:
        """Returns the texts of a demonstrated dialogue, if any."""
        what = f"demonstration_turns() of prompt {prompt.index}"
        inner: Any = self.inner
        found = self.asked(what, lambda: inner.demonstration_turns(prompt))
        if found is None:
            return None
        texts: list[object] = list(found) if isinstance(found, Sequence) and not isinstance(found, str) else [found]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise self.fault(what, f"gives {shown(found)}, not texts or None")
        return [str(text) for text in texts]

    def checked_score(self, what: str, found: object) -> Score:
        """Returns a score that `rewards` allows, with finite figures."""
        if not isinstance(found, Score) or not _is_figure(found.task) or not self.rewards.allows(found.task):
            raise self.fault(what, f"does not give a Score with {self._allowed(found)}: {shown(found)}")
        parts: object = found.parts
        if not isinstance(parts, Mapping):
            raise self.fault(what, f"has parts that are not a mapping: {shown(parts)}")
        for name, figure in parts.items():
            if not isinstance(name, str) or not _is_figure(figure):
                raise self.fault(what, f"has the part {shown(name)} = {shown(figure)}, not a finite number with a name")
        return replace(found, task=float(found.task) + 0.0)  # a plain float; -0.0 becomes 0.0

    def _allowed(self, found: object) -> str:
        if self.rewards is Rewards.UNIT:
            return "a task from 0.0 to 1.0, as its family declares (rewards = unit)"
        allowed = "a task of 0.0 or 1.0, as its family declares (rewards = binary)"
        partial = isinstance(found, Score) and _is_figure(found.task) and Rewards.UNIT.allows(found.task)
        return allowed + ("; a family with partial credit declares rewards=Rewards.UNIT" if partial else "")

    def asked(self, what: str, ask: Callable[[], object], *, passes: tuple[type[MusterError], ...] = ()) -> object:
        """Calls a method of the environment; reports its exceptions as faults of the environment.

        Args:
            what: The call, for messages.
            ask: Makes the call.
            passes: Errors that the method may raise, besides those of this machine. Callers blame a node for some kinds
                of errors, or skip a row, so no other kind may pass.
        """
        known: tuple[type[MusterError], ...] = (EnvironmentFault, BadDataset, Unavailable, *passes)
        try:
            return ask()
        except known:
            raise
        except (Exception, SystemExit) as error:
            fault = self.fault(what, f"raised {type(error).__name__}: {str(error)[:200]}")
            if isinstance(error, MusterError) and error.hint:
                fault.hint = error.hint
            raise fault from error

    def fault(self, what: str, why: str) -> EnvironmentFault:
        """Returns the error for a violation of the contract."""
        return EnvironmentFault(f"environment {self.name} {self.version}: {what} {why}")


MOST_MESSAGES = 64
"""Maximum messages in an opening or a reply."""
MOST_CHARACTERS = 1024 * 1024
"""Maximum characters of all messages of an opening or of a reply."""
_MOST_TOOLS = 64
_MOST_SCHEMAS = 256 * 1024
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class CheckedEpisode:
    """Wraps an episode and validates its results; raises `EnvironmentFault` on a violation.

    Args:
        environment: The episode's environment.
        prompt: Its prompt.
        inner: The episode.
    """

    def __init__(self, environment: CheckedEnvironment, prompt: Prompt, inner: Episode) -> None:
        self._environment = environment
        self._index = prompt.index
        self._inner = inner
        self.opening = self._messages("opening", self._asked("opening", lambda: inner.opening))
        roles = [one.role for one in self.opening]
        if not roles or Role.TOOL in roles or Role.SYSTEM in roles[roles.count(Role.SYSTEM) :]:
            raise self._fault("opening", f"does not have system messages, then user messages: {shown(roles)}")
        self.tools = self._tools(self._asked("tools", lambda: inner.tools))

    def reply(self, message: ModelMessage) -> Reply:
        """Returns the reply; its texts are guaranteed to be encodable."""
        found = self._asked("reply()", lambda: self._inner.reply(message))
        if not isinstance(found, Reply) or not {type(found.done), type(found.limited)} <= {bool}:
            raise self._fault("reply()", f"does not return a Reply: {shown(found)}")
        if found.limited and not found.done:
            raise self._fault("reply()", "goes on after a limit of time or memory; set done with limited")
        messages = self._messages("reply()", found.messages)
        if any(one.role is Role.SYSTEM for one in messages):
            raise self._fault("reply()", "has a system message; only the opening can have one")
        return Reply(messages=messages, done=found.done, limited=found.limited)

    def score(self) -> Score:
        """Returns the score: see `CheckedEnvironment.score`."""
        return self._environment.checked_score(
            f"score() of a dialogue of prompt {self._index}", self._asked("score()", self._inner.score)
        )

    def _messages(self, what: str, found: object) -> tuple[GivenMessage, ...]:
        if not isinstance(found, Sequence) or not all(isinstance(one, GivenMessage) for one in found):
            raise self._fault(what, f"has messages that are no sequence of GivenMessage: {shown(found)}")
        if len(found) > MOST_MESSAGES:
            raise self._fault(what, f"has {len(found)} messages; at most {MOST_MESSAGES} are allowed")
        for one in found:
            if not isinstance(one.role, Role) or not has_encoding(one.text) or not has_encoding(one.name):
                raise self._fault(
                    what, f"has a message without a role or with a text that can't be encoded: {shown(one)}"
                )
        length = sum(len(one.text) for one in found)
        if length > MOST_CHARACTERS:
            raise self._fault(what, f"has {length} characters; at most {MOST_CHARACTERS} are allowed")
        return tuple(found)

    def _tools(self, found: object) -> tuple[Tool, ...]:
        if not isinstance(found, Sequence) or not all(isinstance(tool, Tool) for tool in found):
            raise self._fault("tools", f"is not a sequence of Tool: {shown(found)}")
        names = [tool.name for tool in found]
        if not all(isinstance(name, str) and _TOOL_NAME.fullmatch(name) for name in names):
            raise self._fault("tools", f"has a name that is not 1 to 64 letters, digits, _ and -: {shown(names)}")
        if len(set(names)) < len(names) or len(names) > _MOST_TOOLS:
            raise self._fault("tools", f"has a name twice, or more than {_MOST_TOOLS} tools: {shown(names)}")
        try:
            schemas = json.dumps([[tool.description, tool.parameters] for tool in found], allow_nan=False)
            schemas.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise self._fault("tools", f"has a description or schema that is no JSON: {str(error)[:200]}") from error
        if len(schemas) > _MOST_SCHEMAS:
            raise self._fault("tools", f"has schemas of {len(schemas)} characters; the limit is {_MOST_SCHEMAS}")
        return tuple(found)

    def _asked(self, what: str, ask: Callable[[], object]) -> object:
        return self._environment.asked(f"{what} of a dialogue of prompt {self._index}", ask)

    def _fault(self, what: str, why: str) -> EnvironmentFault:
        return self._environment.fault(f"{what} of a dialogue of prompt {self._index}", why)


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
