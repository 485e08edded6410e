"""Formats the results of each environment of a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.by_environment import EnvironmentResult


def solved_by_environment(results: Mapping[str, EnvironmentResult]) -> str:
    """Formats the share of solved answers by environment: `letters 12.0%, arithmetic 3.1%`."""
    return ", ".join(f"{label} {one.solved:.1%}" for label, one in results.items())
