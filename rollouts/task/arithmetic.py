"""Checks that the pool pays for this task's engine and data type, before any lease or generation."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import InvalidInput
from rollouts.engines.interface import Engine
from rollouts.precision import arithmetic_name


class ArithmeticNotTaken(InvalidInput):
    """The version's recipe does not name this task's engine and data type, so its files would not be paid."""

    code = "arithmetic-not-taken"


def check_taken(taken: Sequence[str], engine: Engine) -> None:
    """Checks that the pool pays for this engine's rollouts, if the accepted engines are known.

    Args:
        taken: All engines and data types that the recipe accepts, e.g. `torch/float32`; empty if not known yet.
        engine: The task's engine.

    Raises:
        ArithmeticNotTaken: The recipe does not accept the engine and data type.
    """
    own = arithmetic_name(engine.name, engine.dtype)
    if not taken or own in taken:
        return
    wanted_engine, _, wanted_dtype = taken[0].partition("/")
    raise ArithmeticNotTaken(
        f"this task generates with {own}, and this version is paid for {', '.join(taken)} only",
        hint=f"the pool owner can post the task with `--engine {wanted_engine} --dtype {wanted_dtype}` "
        f"(`muster pool run`), or add {own} to `arithmetic` in the run's recipe",
    )
