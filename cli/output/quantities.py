"""Parses and formats sizes, times and named choices."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from protocol.errors import InvalidInput

Choice = TypeVar("Choice", bound=StrEnum)

_UNITS = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}
_SIZE = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,3}))?\s*([kmgt]i?)?b?", re.IGNORECASE)
_SPAN = re.compile(r"([0-9]{1,9})\s*(s|min|h|d)")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_SPANS = ((86_400, "d"), (3600, "h"), (60, "min"))


def parse_size(text: str) -> int:
    """Reads `2GiB`, `512MiB`, `1.5G` or a number of bytes.

    Raises:
        InvalidInput: The text has another form.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text[:40]!r} is not a size", hint="for example 2GiB, 512MiB or a number of bytes")
    whole, part, unit = match[1], match[2] or "", (match[3] or "").lower()
    return int(whole + part) * _UNITS[unit] // int(10 ** len(part))


def format_size(size: int) -> str:
    """Formats a number of bytes in the largest binary unit in which the number is at least 1."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def counted(number: int, noun: str) -> str:
    """Formats a number with its noun: `1 step`, `1,024 steps`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_span(span: timedelta) -> str:
    """Formats a duration in its largest whole unit: `3 min`, `2 h`."""
    seconds = max(0, int(span.total_seconds()))
    for size, unit in _SPANS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def moment(time_ms: int | None) -> datetime | None:
    """Converts milliseconds of Unix time to a datetime; None stays None."""
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)


def parse_moment(text: str) -> datetime:
    """Reads a time, `2026-01-02T03:04:05Z` or `2026-01-02`, or `30min`, `2h` or `3d` for so long ago.

    A time without an offset is in UTC.

    Raises:
        InvalidInput: The text has another form.
    """
    match = _SPAN.fullmatch(text.strip())
    try:
        if match is not None:
            return datetime.now(UTC) - timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
        found = datetime.fromisoformat(text.strip())
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{text[:40]!r} is not a time", hint="for example 2026-01-02T03:04:05Z, or 30min, 2h or 3d for so long ago"
        ) from None


def ago(time_ms: int | None, *, now: datetime) -> str:
    """Formats the time from `time_ms` to `now`: `3 min ago`, or `-` if `time_ms` is None."""
    then = moment(time_ms)
    return "-" if then is None else f"{format_span(now - then)} ago"


def one_of(kind: type[Choice], text: str) -> Choice:
    """Returns the enum member that has the value `text`.

    Raises:
        InvalidInput: No member has this value; the hint lists all values.
    """
    try:
        return kind(text.strip())
    except ValueError:
        raise InvalidInput(f"{text[:40]!r} is not an allowed value", hint=f"one of {', '.join(kind)}") from None
