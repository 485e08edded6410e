"""Deaths at chosen moments, in this process: as `kill -9`, nothing that comes after it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """No handler of errors hears of it."""


def dies(method: Callable[..., Any], when: Callable[..., bool], *, after: bool) -> Callable[..., Any]:
    """The method, which dies before or after it was called so."""

    def run(*arguments: Any, **named: Any) -> Any:
        now = when(*arguments, **named)
        if now and not after:
            raise Killed
        answer = method(*arguments, **named)
        if now:
            raise Killed
        return answer

    return run
