"""Difficulty pools: select prompts for later versions by their results (PRIME-RL, online filtering).

A prompt is easy, normal or hard by the share of correct samples when it was last used. A prompt with only correct
samples gives no gradient; if this happens several times in a row, the prompt is removed from the next version's table.
Of the other prompts, the table keeps all normal ones, and the shares of easy and hard ones that the settings name. The
pools depend only on the journal, so a resumed run draws the same tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

_TAG = b"muster-pools-v1"


class DifficultyPool(StrEnum):
    """Difficulty of a prompt for the policy."""

    EASY = "easy"
    NORMAL = "normal"
    HARD = "hard"


class PoolSettings(BaseModel):
    """Selection of prompts by difficulty."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    retire_after: int = Field(
        2, ge=0, description="A prompt solved completely this many times in a row is removed; 0 keeps all"
    )
    least_prompts: int = Field(256, ge=1, description="Minimum number of prompts that stay eligible")
    easy_above: float = Field(0.75, ge=0, le=1, description="A prompt is easy if a larger share of samples is correct")
    hard_below: float = Field(
        0.125, ge=0, le=1, description="A prompt is hard if a smaller share of samples is correct"
    )
    easy_share: float = Field(1.0, ge=0, le=1, description="Share of the easy prompts that a version's table keeps")
    hard_share: float = Field(1.0, ge=0, le=1, description="Share of the hard prompts that a version's table keeps")


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """Results of a prompt.

    Args:
        solved: Share of correct samples when it was last used.
        streak: Consecutive uses in which all samples were correct.
    """

    solved: float
    streak: int


@dataclass(frozen=True, slots=True)
class DifficultyPools:
    """Results of all prompts used so far; immutable."""

    records: Mapping[int, PromptRecord] = field(default_factory=dict)

    def after(self, seen: Iterable[tuple[int, float]]) -> DifficultyPools:
        """Returns the pools after a step.

        Args:
            seen: Prompt index and share of correct samples of every group, in the journal's order.
        """
        records = dict(self.records)
        for prompt, solved in seen:
            before = records.get(prompt)
            streak = (before.streak if before else 0) + 1 if solved >= 1 else 0
            records[prompt] = PromptRecord(solved, streak)
        return DifficultyPools(records)

    def counts(self, settings: PoolSettings) -> dict[DifficultyPool, int]:
        """Returns the number of prompts in each difficulty pool."""
        found = dict.fromkeys(DifficultyPool, 0)
        for record in self.records.values():
            found[pool_of(record, settings)] += 1
        return found

    def eligible(
        self, candidates: NDArray[np.uint64], settings: PoolSettings, *, version: int, seed: int
    ) -> NDArray[np.uint64]:
        """Returns a version's prompt table: a sorted subset of the candidates.

        The table has at least `least_prompts` prompts, if there are so many candidates.

        Args:
            candidates: The base's table, sorted.
            settings: Selection by difficulty.
            version: Number of the version; easy and hard prompts are drawn anew for each version.
            seed: The run's seed.
        """
        leaving = sorted(
            (record.streak, prompt)
            for prompt, record in self.records.items()
            if not self._stays(prompt, record, settings, version, seed)
        )
        kept = candidates[~np.isin(candidates, np.array([prompt for _, prompt in leaving], np.uint64))]
        lacking = min(settings.least_prompts, len(candidates)) - len(kept)
        if lacking <= 0:
            return kept
        known = set(candidates.tolist())
        back = [prompt for _, prompt in leaving if prompt in known][:lacking]  # prompts with the shortest streak first
        return np.sort(np.concatenate([kept, np.array(back, np.uint64)]))

    @staticmethod
    def _stays(prompt: int, record: PromptRecord, settings: PoolSettings, version: int, seed: int) -> bool:
        if settings.retire_after and record.streak >= settings.retire_after:
            return False
        shares = {
            DifficultyPool.EASY: settings.easy_share,
            DifficultyPool.NORMAL: 1.0,
            DifficultyPool.HARD: settings.hard_share,
        }
        return _drawn(prompt, version, seed) < shares[pool_of(record, settings)]

    def as_json(self) -> list[list[float]]:
        """Returns the records for the state file."""
        return [[prompt, record.solved, record.streak] for prompt, record in sorted(self.records.items())]

    @classmethod
    def of_json(cls, rows: Sequence[Sequence[float]]) -> DifficultyPools:
        """Parses the result of `as_json`."""
        return cls({int(prompt): PromptRecord(float(solved), int(streak)) for prompt, solved, streak in rows})


def pool_of(record: PromptRecord, settings: PoolSettings) -> DifficultyPool:
    """Returns the difficulty pool of a prompt."""
    if record.solved > settings.easy_above:
        return DifficultyPool.EASY
    return DifficultyPool.HARD if record.solved < settings.hard_below else DifficultyPool.NORMAL


def _drawn(prompt: int, version: int, seed: int) -> float:
    """Returns a pseudo-random number in [0, 1) determined by prompt, version and seed."""
    words = b"".join(number.to_bytes(8, "big") for number in (seed, version, prompt))
    return int.from_bytes(hashlib.sha256(_TAG + words).digest()[:8], "big") / 2**64
