"""Environment `lookup`: finds two hidden digits with two calls of a tool; a tiny model can learn it.

Prompts are two different letters and `?`, such as `ck?`. The tool `get` returns a letter's digit, which differs from
prompt to prompt: the reply to `get(c)` is `=7;`. The right answer is both digits in the order of the prompt, such as
`74`. The warm-up data are deliberately unreliable: 30 % of the demonstrations are right, 33 % call the tool only once
and repeat its digit, and 37 % write the digits in reverse order. So a run shows that reinforcement learning selects the
rewarded behaviour among the behaviours that the model already has. Reverse order is the most frequent one, so that the
most likely answers of a warmed-up model are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from rollouts.environments.dialogue import DialogueEnvironment, Episode, GivenMessage, Role, Tool, score_of_one
from rollouts.environments.factory import Family, Options, SandboxSource
from rollouts.environments.indices import check_index
from rollouts.environments.interface import Environment, Prompt, Score
from rollouts.environments.prng import PrngStream
from rollouts.environments.tools import CallableTool, ToolEpisode, text_argument

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
NOT_A_LETTER = "=?;"
"""Reply to a key that is not a single letter."""
_TOOL = Tool(
    name="get",
    description="Returns the digit of a letter.",
    parameters={
        "type": "object",
        "properties": {"key": {"type": "string", "description": "a letter from a to z"}},
        "required": ["key"],
    },
)
_RIGHT_PERCENT = 30
_ONCE_PERCENT = 33


class LookupOptions(Options):
    """Options of `lookup`: none."""


class Lookup:
    """The `lookup` environment; see the module docstring."""

    name = "lookup"

    def __init__(self, version: str) -> None:
        self.version = version

    def size(self) -> int | None:
        """Returns None: the size is unlimited; different indices may have equal prompts with different digits."""
        return None

    def prompt(self, index: int) -> Prompt:
        """Returns two letters; their digits are hidden in the prompt's data."""
        draws = PrngStream("lookup-prompt-v1", check_index(index, size=None))
        first = draws.below(26)
        second = (first + 1 + draws.below(25)) % 26
        digits = "".join(str(draws.below(10)) for _ in _ALPHABET)
        return Prompt(index=index, text=f"{_ALPHABET[first]}{_ALPHABET[second]}?", data={"digits": digits})

    def begin(self, prompt: Prompt) -> Episode:
        """Begins a dialogue."""
        digits, wanted = str(prompt.data["digits"]), _wanted(prompt)

        def get(arguments: Mapping[str, JsonValue]) -> str:
            key = text_argument(arguments, "key")
            return f"={digits[_ALPHABET.index(key)]};" if len(key) == 1 and key in _ALPHABET else NOT_A_LETTER

        def judge(answer: str | None, finished: bool) -> Score:
            right = finished and answer is not None and answer == wanted
            return Score(task=float(right), parts={"answered": float(answer is not None)})

        opening = [GivenMessage(role=Role.USER, text=prompt.text)]
        return ToolEpisode(opening, [CallableTool(tool=_TOOL, run=get)], judge)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns the score of an answer without calls."""
        environment: DialogueEnvironment = self
        return score_of_one(environment, prompt, completion, finished=finished)

    def demonstration(self, prompt: Prompt) -> str | None:
        """Returns the right answer."""
        return _wanted(prompt)

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str]:
        """Returns the texts of a dialogue that is right for 30 % of the prompts; see the module docstring."""
        wanted, letters = _wanted(prompt), prompt.text[:2]
        calls = [f"get({letter})" for letter in letters]
        drawn = PrngStream("lookup-demonstration-v1", prompt.index).below(100)
        if drawn < _RIGHT_PERCENT:
            return [*calls, wanted]
        if drawn < _RIGHT_PERCENT + _ONCE_PERCENT:
            return [calls[0], wanted[0] * 2]
        return [*calls, wanted[::-1]]


def _wanted(prompt: Prompt) -> str:
    digits = str(prompt.data["digits"])
    return "".join(digits[_ALPHABET.index(letter)] for letter in prompt.text[:2])


def _build(version: str, _options: LookupOptions, _: SandboxSource) -> Environment:
    return Lookup(version)


family = Family(
    name="lookup",
    version="1",
    summary="two hidden digits, found with two calls of a tool",
    options=LookupOptions,
    build=_build,
)
