"""Environment `arithmetic`: sums, differences and products of integers, such as `17*23=`."""

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
    """Options of `arithmetic`."""

    operations: Annotated[tuple[Operation, ...], Field(min_length=1, max_length=3)] = ("+", "-", "*")
    """Operations, drawn with equal probability."""
    digits: Annotated[int, Field(ge=1, le=_MOST_DIGITS)] = 3
    """Maximum digits of a number in a prompt."""


class ArithmeticEnvironment:
    """The `arithmetic` environment; see the module docstring."""

    name = "arithmetic"

    def __init__(self, version: str, options: ArithmeticOptions) -> None:
        self.version = version
        self._options = options

    def size(self) -> int | None:
        """Returns None: unlimited; different indices may have equal prompts."""
        return None

    def prompt(self, index: int) -> Prompt:
        """Returns two numbers of 1 to `digits` digits each and an operation."""
        draws = PrngStream("arithmetic-prompt-v1", check_index(index, size=None))
        operation = draws.one_of(self._options.operations)
        left, right = self._number(draws), self._number(draws)
        answer = {"+": left + right, "-": left - right, "*": left * right}[operation]
        return Prompt(index=index, text=f"{left}{operation}{right}=", data={"answer": str(answer)})

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Scores 1 if the completion is the number, optionally surrounded by blanks, and the model ended by itself."""
        exact = completion.strip() == prompt.data["answer"]
        return Score(task=float(exact and finished), parts={"exact": float(exact), "finished": float(finished)})

    def demonstration(self, prompt: Prompt) -> str:
        """Returns the right answer."""
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
