"""Simulated deaths at chosen moments in this process: as after `kill -9`, no later code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """An error that no handler catches."""


def dies(method: Callable[..., Any], when: Callable[..., bool], *, after: bool) -> Callable[..., Any]:
    """Returns the method, which dies before or after a matching call."""

    def run(*arguments: Any, **named: Any) -> Any:
        now = when(*arguments, **named)
        if now and not after:
            raise Killed
        answer = method(*arguments, **named)
        if now:
            raise Killed
        return answer

    return run
