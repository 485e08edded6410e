"""Runs of the devnet by name: where each starts, how it learns, and what it has to reach.

`answers` rewards the right answer; `length` rewards it too, and takes something off for each token that an answer is
longer or shorter than its prompt asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cli.devnet.goals import Goal

LEARNING: Mapping[str, object] = {"optimiser": {"learning_rate": 2e-4, "clip": 0.1}}
"""Learning settings that differ from the defaults in `trainer.learning.settings`."""


class PresetName(StrEnum):
    """Task that the policy learns."""

    ANSWERS = "answers"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One run.

    Args:
        task: What it is, for people.
        base: The shipped base that it starts from: `trainer.presets.devnet_base`.
        steps: Of the run.
        goal: What it has to reach in these.
        fast_steps: Enough to see it learn, not to see it become good.
        fast_goal: What it has to reach in those.
        learning: What is not as usual: `trainer.learning.settings`.
    """

    task: str
    base: str
    steps: int
    goal: Goal
    fast_steps: int
    fast_goal: Goal
    learning: Mapping[str, object] = field(default_factory=lambda: LEARNING)


PRESETS: Mapping[PresetName, Preset] = {
    PresetName.ANSWERS: Preset(
        task="reverse and sort letters, by reward",
        base="devnet",
        steps=40,
        goal=Goal(rise=0.3),
        fast_steps=15,
        fast_goal=Goal(rise=0.15),
    ),
    PresetName.LENGTH: Preset(
        task="reverse and sort letters in a wanted length, by reward",
        base="devnet-length",
        steps=40,
        goal=Goal(rise=0.3, distance=1.0),
        fast_steps=15,
        fast_goal=Goal(rise=0.15, distance=1.7),
    ),
}
