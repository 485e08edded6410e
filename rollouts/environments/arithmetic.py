"""`arithmetic`: sums, differences and products of whole numbers, such as `17*23=`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollouts.environments.factory import Family, Options, SandboxSource
from rollouts.environments.indices import check_index
from rollouts.environments.interface import Environment, Prompt, Score
from rollouts.environments.prng import PrngStream

_MOST_DIGITS = 18

Operation = Literal["+", "-", "*"]


class ArithmeticOptions(Options):
    """What can be set."""

    operations: Annotated[tuple[Operation, ...], Field(min_length=1, max_length=3)] = ("+", "-", "*")
    """Which are asked for, each alike."""
    digits: Annotated[int, Field(ge=1, le=_MOST_DIGITS)] = 3
    """The most digits of a number in a prompt."""


class ArithmeticEnvironment:
    """The environment; see the head of this file."""

    name = "arithmetic"

    def __init__(self, version: str, options: ArithmeticOptions) -> None:
        self.version = version
        self._options = options

    def size(self) -> int | None:
        """Without end; indices may have equal prompts."""
        return None

    def prompt(self, index: int) -> Prompt:
        """Two numbers, each of 1 to `digits` digits, and an operation."""
        draws = PrngStream("arithmetic-prompt-v1", check_index(index, size=None))
        operation = draws.one_of(self._options.operations)
        left, right = self._number(draws), self._number(draws)
        answer = {"+": left + right, "-": left - right, "*": left * right}[operation]
        return Prompt(index=index, text=f"{left}{operation}{right}=", data={"answer": str(answer)})

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Right if the completion is the number, blanks around it allowed, and the model then ended."""
        exact = completion.strip() == prompt.data["answer"]
        return Score(task=float(exact and finished), parts={"exact": float(exact), "finished": float(finished)})

    def demonstration(self, prompt: Prompt) -> str:
        """The right answer."""
        return str(prompt.data["answer"])

    def _number(self, draws: PrngStream) -> int:
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
