"""Environment `letters`: reverse a word or sort digits; a model with half a million parameters can learn it.

Prompts are `rev:` and 4 to 7 letters, or `sort:` and 4 to 6 digits, then `=`. Only the exact answer followed by the end
token counts. The warm-up data are deliberately unreliable: a third of the demonstrations is right, a third copies the
input, and a third does the other operation. So a run shows that reinforcement learning selects the rewarded behaviour
among the behaviours that the model already has.

With the option `filler`, an answer may begin with any number of full stops, and the length reward counts them. The
recipe then needs `targets` such as 1, 3, 5, 7 and a template such as `{target}{prompt}`. A third of the demonstrations
for such an environment has the desired number of full stops; the others have a random number.

With the option `partial`, the reward is the share of characters that are in the right place.
"""

from __future__ import annotations

from rollouts.environments.factory import Family, Options, SandboxSource
from rollouts.environments.indices import check_index
from rollouts.environments.interface import Environment, Prompt, Rewards, Score
from rollouts.environments.prng import PrngStream

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
FILLER = "."
VOCABULARY = ALPHABET + DIGITS + ":=" + FILLER
"""All characters of prompts, answers and targets."""

_MOST_FILLER = 8
"""Maximum random number of full stops in a demonstration; larger than the largest target that a model learned."""

_RIGHT_PERCENT = 34
_COPIED_PERCENT = 33
_KEPT_PERCENT = 34


class LettersOptions(Options):
    """Options of `letters`."""

    filler: bool = False
    """Lets answers begin with full stops, which the length reward then measures."""
    partial: bool = False
    """Rewards the share of right characters instead of exact answers only."""


class Letters:
    """The `letters` environment; see the module docstring."""

    name = "letters"

    def __init__(self, version: str, options: LettersOptions) -> None:
        self.version = version
        self._filler = options.filler
        self._partial = options.partial

    def size(self) -> int | None:
        """Returns None: the size is unlimited; different indices may have equal prompts."""
        return None

    def prompt(self, index: int) -> Prompt:
        """Returns a word to reverse or digits to sort, with equal probability."""
        draws = PrngStream("letters-prompt-v1", check_index(index, size=None))
        if draws.below(2) == 0:
            operation, argument = "rev", _string(draws, ALPHABET, draws.between(4, 7))
        else:
            operation, argument = "sort", _string(draws, DIGITS, draws.between(4, 6))
        answer = _reversed(argument) if operation == "rev" else _sorted(argument)
        data = {"operation": operation, "argument": argument, "answer": answer}
        return Prompt(index=index, text=f"{operation}:{argument}=", data=data)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Scores 1 only if the answer is exact and the model ended by itself.

        With `partial`, an answer that the model ended by itself scores its share of right characters.
        """
        answer = completion.lstrip(FILLER) if self._filler else completion
        expected = str(prompt.data["answer"])
        exact = answer == expected
        parts = {"exact": float(exact), "finished": float(finished)}
        if self._filler:
            parts["length"] = float(len(completion) - len(answer))
        if self._partial and finished:
            return Score(task=_share_in_place(answer, expected), parts=parts)
        return Score(task=float(exact and finished), parts=parts)

    def demonstration(self, prompt: Prompt) -> str:
        """Returns the right answer for 34 of 100 prompts, the input for 33, and the other operation for 33.

        With `filler`, 34 of 100 prompts with a target get the target's number of full stops; the other prompts get a
        random number up to 8.
        """
        draws = PrngStream("letters-demonstration-v1", prompt.index)
        chance = draws.below(100)
        argument = str(prompt.data["argument"])
        if chance < _RIGHT_PERCENT:
            answer = str(prompt.data["answer"])
        elif chance < _RIGHT_PERCENT + _COPIED_PERCENT:
            answer = argument
        else:
            answer = _sorted(argument) if prompt.data["operation"] == "rev" else _reversed(argument)
        if not self._filler:
            return answer
        filler = draws.between(0, _MOST_FILLER)
        if prompt.target_length is not None and draws.below(100) < _KEPT_PERCENT:
            filler = prompt.target_length
        return FILLER * filler + answer


def _share_in_place(answer: str, expected: str) -> float:
    right = sum(given == wanted for given, wanted in zip(answer, expected, strict=False))
    return right / max(len(answer), len(expected))


def _string(draws: PrngStream, characters: str, length: int) -> str:
    return "".join(draws.one_of(characters) for _ in range(length))


def _reversed(text: str) -> str:
    return text[::-1]


def _sorted(text: str) -> str:
    return "".join(sorted(text))


def _build(version: str, options: LettersOptions, _: SandboxSource) -> Environment:
    return Letters(version, options)


family = Family(
    name="letters",
    version="1",
    summary="reverse a word or sort digits, exactly; for tiny models",
    options=LettersOptions,
    build=_build,
    rewards=lambda options: Rewards.UNIT if options.partial else Rewards.BINARY,
)
