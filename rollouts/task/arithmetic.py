"""Chooses the arithmetic that this task's files name, before any lease or generation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from protocol.errors import InvalidInput
from rollouts.precision import Arithmetic


class ArithmeticNotTaken(InvalidInput):
    """The version's recipe does not name this task's engine and data type, so its files would not be paid."""

    code = "arithmetic-not-taken"


class ArithmeticNotVerifiable(InvalidInput):
    """No validator of the pool can reproduce this task's numerics class, so its files could not be verified."""

    code = "arithmetic-not-verifiable"


class HasArithmetics(Protocol):
    """An engine whose arithmetics are known."""

    @property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        """The engine's arithmetics: see `Engine.arithmetics`."""


def paid_arithmetic(taken: Sequence[str], engine: HasArithmetics, *, unverifiable: Collection[str] = ()) -> Arithmetic:
    """Returns the first of the engine's arithmetics that the recipe accepts: a numerics class before a pair.

    Args:
        taken: The arithmetics that the recipe accepts (pairs of engine and data type, and numerics classes); empty if
            they are not known yet.
        engine: The task's engine.
        unverifiable: Numerics classes that no validator of the pool can verify; they are skipped.

    Raises:
        ArithmeticNotTaken: The recipe accepts none of the engine's arithmetics.
        ArithmeticNotVerifiable: No validator can verify those of the engine's arithmetics that the recipe accepts.
    """
    accepted = [own for own in engine.arithmetics if not taken or str(own) in taken]
    for own in accepted:
        if str(own) not in unverifiable:
            return own
    if accepted:
        raise _not_verifiable(accepted[0], [name for name in taken if name not in unverifiable])
    names = " or ".join(map(str, engine.arithmetics))
    raise ArithmeticNotTaken(
        f"this task generates with {names}, but this version is paid for {', '.join(taken)} only",
        hint=(
            f"the pool owner can post the task with {_arguments(taken[0])} (`muster pool run`), or add "
            f"{engine.arithmetics[0]} to `arithmetic` in the run's recipe"
        ),
    )


def _not_verifiable(own: Arithmetic, verifiable: Sequence[str]) -> ArithmeticNotVerifiable:
    others = (
        f"post the task with {_arguments(verifiable[0])} (`muster pool run`)"
        if verifiable
        else f"add {own.pair}, which every validator verifies, to `arithmetic` in the run's recipe"
    )
    return ArithmeticNotVerifiable(
        f"this machine computes {own}, which no validator of the pool can verify; of the names that this version is "
        f"paid for, validators can verify {', '.join(verifiable) or 'none'}",
        hint=(
            f"the pool owner can run a validator that reproduces {own}, or {others}; the task continues by itself when "
            "a validator reports the class"
        ),
    )


def _arguments(name: str) -> str:
    """Returns the command-line arguments with which a task generates in this arithmetic."""
    try:
        wanted = Arithmetic.parse(name)
    except ValueError:  # a name of a later release
        return name
    device = f" --numerics {wanted.device}" if wanted.is_class else ""
    version = f" and vLLM {wanted.version}" if wanted.version else ""
    return f"`--engine {wanted.engine.value} --dtype {wanted.dtype.value}{device}`{version}"
