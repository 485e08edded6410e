"""Checks the `${MUSTER_…}` variables of a task when it is posted, before it runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from protocol.errors import Unprocessable
from protocol.wire.tasks import VARIABLES, TaskSpec

_USE = re.compile(r"\$\{(MUSTER_[^}]*)\}?")


def check_variables(spec: TaskSpec) -> None:
    """Checks that a task uses only documented variables and sets none of them.

    Raises:
        Unprocessable: The task uses a variable that is not documented, or sets a documented one.
    """
    wrong: dict[str, str] = {}
    for field, text in _texts(spec):
        for name in _USE.findall(text):
            if name not in VARIABLES:
                close = difflib.get_close_matches(name, VARIABLES, n=1)
                wrong[field] = f"${{{name[:60]}}} is no variable" + (f"; did you mean {close[0]}?" if close else "")
    for name in spec.environment:
        if name in VARIABLES:
            wrong[f"environment.{name}"] = "is set by the worker"
    if wrong:
        raise Unprocessable(
            "; ".join(f"{field}: {what}" for field, what in wrong.items())[:1000],
            fields=wrong,
            hint=f"known are {', '.join(VARIABLES)}",
        )


def _texts(spec: TaskSpec) -> Iterator[tuple[str, str]]:
    for index, text in enumerate(spec.entrypoint or ()):
        yield f"entrypoint.{index}", text
    for index, text in enumerate(spec.command):
        yield f"command.{index}", text
    for name, text in spec.environment.items():
        yield f"environment.{name}", text
