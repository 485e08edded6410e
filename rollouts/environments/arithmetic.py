"""Environment `arithmetic`: sums, differences and products of integers, such as `17*23=`.

With `form = "question"` the prompt is a sentence for a chat model, such as `What is 17 + 23?`, and with
`answer = "last-number"` the last number of an answer counts, so that `17 + 23 is 40.` is right.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from rollouts.environments.factory import Family, Options, SandboxSource
from rollouts.environments.indices import check_index
from rollouts.environments.interface import Environment, Prompt, Score
from rollouts.environments.prng import PrngStream

_MOST_DIGITS = 18

_NUMBER = re.compile(r"(?<![0-9.])(?:(?<![0-9)] )(?<![0-9)])[-\u2212])?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
"""A number with its sign, thousands separators and decimals. A minus that follows a number is an operation, not a sign.
"""

Operation = Literal["+", "-", "*"]


class ArithmeticOptions(Options):
    """Options of `arithmetic`."""

    operations: Annotated[tuple[Operation, ...], Field(min_length=1, max_length=3)] = ("+", "-", "*")
    """Operations, drawn with equal probability."""
    digits: Annotated[int, Field(ge=1, le=_MOST_DIGITS)] = 3
    """Maximum digits of a number in a prompt."""
    largest: Annotated[int | None, Field(ge=1, lt=10**_MOST_DIGITS)] = None
    """Largest number in a prompt; all numbers from 0 to `largest` are equally probable. If set, `digits` is ignored."""
    form: Literal["expression", "question"] = "expression"
    """Prompts such as `17+23=`, or such as `What is 17 + 23?`."""
    answer: Literal["exact", "last-number"] = "exact"
    """`exact`: the answer must be the number alone; `last-number`: the answer's last number counts."""


class ArithmeticEnvironment:
    """The `arithmetic` environment; see the module docstring."""

    name = "arithmetic"

    def __init__(self, version: str, options: ArithmeticOptions) -> None:
        self.version = version
        self._options = options

    def size(self) -> int | None:
        """Returns None: the size is unlimited; different indices may have equal prompts."""
        return None

    def prompt(self, index: int) -> Prompt:
        """Returns an operation on two numbers.

        Each number has 1 to `digits` digits or, if `largest` is set, is from 0 to `largest`.
        """
        draws = PrngStream("arithmetic-prompt-v1", check_index(index, size=None))
        operation = draws.one_of(self._options.operations)
        left, right = self._number(draws), self._number(draws)
        answer = {"+": left + right, "-": left - right, "*": left * right}[operation]
        question = self._options.form == "question"
        text = f"What is {left} {operation} {right}?" if question else f"{left}{operation}{right}="
        return Prompt(index=index, text=text, data={"answer": str(answer)})

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns score 1 for the right number, else 0.

        With `answer = "exact"`, only blanks may surround the number, and the model must have ended the answer by
        itself, not at the length limit.
        """
        if self._options.answer == "last-number":
            found = _NUMBER.findall(completion)
            correct = bool(found) and found[-1].replace(",", "").replace("\u2212", "-") == prompt.data["answer"]
            return Score(task=float(correct), parts={"finished": float(finished)})
        exact = completion.strip() == prompt.data["answer"]
        return Score(task=float(exact and finished), parts={"exact": float(exact), "finished": float(finished)})

    def demonstration(self, prompt: Prompt) -> str:
        """Returns the right answer."""
        return str(prompt.data["answer"])

    def _number(self, draws: PrngStream) -> int:
        if self._options.largest is not None:
            return draws.below(self._options.largest + 1)
        return draws.below(10 ** draws.between(1, self._options.digits))


def _build(version: str, options: ArithmeticOptions, _: SandboxSource) -> Environment:
    return ArithmeticEnvironment(version, options)


family = Family(
    name="arithmetic",
    version="1",
    summary="sums, differences and products of whole numbers",
    options=ArithmeticOptions,
    build=_build,
)
