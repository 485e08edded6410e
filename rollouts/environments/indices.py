"""Validation of prompt indices."""

from __future__ import annotations

from rollouts.environments.errors import NoSuchPrompt

END_OF_INDICES = 2**63
"""Indices are smaller than this bound, because they are transmitted as signed 64-bit integers."""


def check_index(index: int, *, size: int | None) -> int:
    """Returns the index if the environment has it.

    Raises:
        NoSuchPrompt: The index is out of range.
    """
    end = END_OF_INDICES if size is None else size
    if not 0 <= index < end:
        raise NoSuchPrompt(f"there is no prompt {index}: indices go from 0 to {end - 1}")
    return index
