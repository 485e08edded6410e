"""Whether what this task generates with is what the pool pays: asked before anything is leased or generated."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import InvalidInput
from rollouts.engines.interface import (
    Engine,
)
from rollouts.precision import (
    arithmetic_name,
)


class ArithmeticNotTaken(InvalidInput):
    """The version's recipe names other engines and types than this task's: its files would not be paid."""

    code = "arithmetic-not-taken"


def check_taken(taken: Sequence[str], engine: Engine) -> None:
    """Returns if the pool pays for what this engine generates, as far as it has been said.

    Args:
        taken: Such as `torch/float32`: all of them, as a recipe takes them; empty if nobody has said yet.
        engine: The task's.

    Raises:
        ArithmeticNotTaken: It does not.
    """
    own = arithmetic_name(engine.name, engine.dtype)
    if not taken or own in taken:
        return
    wanted_engine, _, wanted_dtype = taken[0].partition("/")
    raise ArithmeticNotTaken(
        f"this task generates with {own}, and this version is paid for {', '.join(taken)} only",
        hint=f"the task's command needs `--engine {wanted_engine} --dtype {wanted_dtype}`: its owner posts it so "
        f"(`muster pool run`), or names {own} under `arithmetic` in the run's recipe",
    )
