"""The report as JSON for programs; docs/devnet.md describes the format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from cli.devnet.report.data import Criterion, RunReport
from cli.output.printing import printable_json
from ledger.amounts import plain_amount

FORMAT = 1
"""Version of the format. It rises if a field is removed, or changes its name, type or meaning; fields may be added."""
_MONEY = {"stake_before", "stake_after", "earned", "slashed"}


def as_json(report: RunReport, criteria: Sequence[Criterion]) -> str:
    """Returns the report as a JSON object; fields of the report are its keys."""
    judged = {"passed": all(one.met for one in criteria), "criteria": criteria}
    values = {"format": FORMAT, **judged, **_fields(report)}
    return printable_json(json.dumps(_plain(values), indent=1, ensure_ascii=False, allow_nan=False)) + "\n"


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    found = {one.name: getattr(value, one.name) for one in fields(value)}
    return {name: plain_amount(each) if name in _MONEY else each for name, each in found.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a report
    """Returns a value with JSON's types: None for numbers that are not finite, lower-case names for enumerations."""
    if is_dataclass(value):
        return _plain(_fields(value))
    match value:
        case Enum():
            return value.name.lower()
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
