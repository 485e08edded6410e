"""Limits for reading rollout files. A module of its own, because the reader imports pyarrow, which is slow."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Limits for reading a file.

    Args:
        file_bytes: Maximum size of the file.
        rows: Maximum number of samples.
        decoded_bytes: Maximum size of all columns, as the file's footer states it; a hostile footer may be wrong.
        tokens: Maximum prompt tokens, output tokens, turns, or tokens given after one turn, of one sample.
    """

    file_bytes: int = 1 << 30
    rows: int = 1 << 20
    decoded_bytes: int = 4 << 30
    tokens: int = 1 << 20

    def within(self, others: ReadLimits) -> ReadLimits:
        """Returns for each limit the smaller of the two values."""
        return ReadLimits(**{one.name: min(getattr(self, one.name), getattr(others, one.name)) for one in fields(self)})
