"""Chooses the name under which this task's files are paid, before any lease or generation."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import InvalidInput
from rollouts.engines.interface import Engine
from rollouts.precision import Arithmetic


class ArithmeticNotTaken(InvalidInput):
    """The version's recipe does not name this task's engine and data type, so its files would not be paid."""

    code = "arithmetic-not-taken"


def paid_arithmetic(taken: Sequence[str], engine: Engine) -> Arithmetic:
    """Returns the first name of what the engine computes that the recipe accepts: a numerics class before a pair.

    Args:
        taken: All engines, data types and numerics classes that the recipe accepts; empty if not known yet.
        engine: The task's engine.

    Raises:
        ArithmeticNotTaken: The recipe accepts none of the names.
    """
    for own in engine.arithmetics:
        if not taken or str(own) in taken:
            return own
    names = " or ".join(map(str, engine.arithmetics))
    raise ArithmeticNotTaken(
        f"this task generates with {names}, and this version is paid for {', '.join(taken)} only",
        hint=_hint(Arithmetic.parse(taken[0]), engine.arithmetics[0]),
    )


def _hint(wanted: Arithmetic, own: Arithmetic) -> str:
    device = f" --numerics {wanted.device}" if wanted.is_class else ""
    command = f"--engine {wanted.engine.value} --dtype {wanted.dtype.value}{device}"
    version = f" and vLLM {wanted.version}" if wanted.version else ""
    return (
        f"the pool owner can post the task with `{command}`{version} (`muster pool run`), or add {own} to `arithmetic` "
        "in the run's recipe"
    )
