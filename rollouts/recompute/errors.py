"""Errors of machines that do not reproduce a numerics class. They never count against the node that made a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import MusterError, Unavailable
from rollouts.errors import EngineFailed, OutOfMemory
from rollouts.precision import Arithmetic


class ClassFailed(Unavailable):
    """Base class: this machine can't judge files of a numerics class; another validator's machine may be able to.

    Args:
        detail: The cause.
        arithmetic: The numerics class.
        hint: The next step for the operator; None for the default.
    """

    retryable = False

    def __init__(self, detail: str, *, arithmetic: Arithmetic, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint)
        self.arithmetic = arithmetic


class ClassNotReproduced(ClassFailed):
    """vLLM is missing, has another version, or does not compute the recording of the class on this machine."""

    code = "class-not-reproduced"
    default_hint = (
        "`muster validator numerics` lists the classes of this machine; the setting vllm_python names an environment "
        "with vLLM"
    )


class NumericsUnstable(ClassFailed):
    """Two processes of one numerics class computed different bits for the same rows on this machine."""

    code = "numerics-unstable"
    default_hint = "run `muster validator numerics --check` on this machine; another validator can judge the work"


@contextmanager
def starting(arithmetic: Arithmetic) -> Iterator[None]:
    """Raises `ClassNotReproduced` for an error of the block that shows that this machine can't compute in a class.

    Other errors pass: with more memory, or at the next attempt, vLLM may start.
    """
    try:
        yield
    except (ClassFailed, EngineFailed, OutOfMemory):
        raise
    except MusterError as error:
        raise ClassNotReproduced(error.detail, arithmetic=arithmetic, hint=error.hint or None) from error
