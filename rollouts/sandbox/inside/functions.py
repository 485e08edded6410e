"""Job that calls an untrusted module's functions by name. Calls contain arguments, never expected values.

The job reads calls from descriptor 4 and answers on descriptor 3, one line each:

    → {"name": "add", "args": <values.encode([1, 2])>, "kwargs": <values.encode({})>}
    ← {"value": <values.encode(3)>}   or   {"error": "TypeError"}
"""

from __future__ import annotations

import json
import typing

from . import values
from .program import OUT_OF_MEMORY, execute, open_standard_streams

_ANSWERS, _CALLS = 3, 4

_TYPES = {name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional", "Set", "Tuple", "Union")}
"""Names that are predefined for solutions, because programming sites let solutions use them without an import."""


def run(payload: dict[str, str]) -> int:
    """Runs `source` as a module, then answers calls until the input ends."""
    open_standard_streams()
    with open(_CALLS, encoding="utf-8") as calls, open(_ANSWERS, "w", encoding="utf-8") as answers:
        failed: BaseException | None = None
        defined: dict[str, object] = {}
        try:
            defined = execute(payload["source"], name="solution", given=_TYPES)
        except BaseException as error:  # noqa: BLE001 - an untrusted module may raise anything
            failed = error
        for line in calls:
            answers.write(_answer(defined, json.loads(line), failed) + "\n")
            answers.flush()
    return OUT_OF_MEMORY if isinstance(failed, MemoryError) else 0


def _answer(defined: dict[str, object], call: dict[str, str], failed: BaseException | None) -> str:
    try:
        return json.dumps({"value": values.encode(_call(defined, call, failed))})
    except BaseException as error:  # noqa: BLE001 - an untrusted function may raise anything
        return json.dumps({"error": type(error).__name__[:100]})


def _call(defined: dict[str, object], call: dict[str, str], failed: BaseException | None) -> object:
    if failed is not None:
        raise failed
    function = _find(defined, call["name"])
    args, kwargs = values.decode(call["args"]), values.decode(call["kwargs"])
    if not callable(function) or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise TypeError(call["name"])
    return function(*args, **kwargs)


def _find(defined: dict[str, object], name: str) -> object:
    """Returns a function of the module, or a method of its class `Solution`, which some programming sites require."""
    if name in defined:
        return defined[name]
    solution = defined.get("Solution")
    if callable(solution) and hasattr(solution, name):
        return getattr(solution(), name)
    raise NameError(name)
