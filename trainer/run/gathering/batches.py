"""Selects the groups of a step's batch and their order.

The selection is deterministic, so that a resumed run selects the same groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from protocol.runtime.randomness import Random
from trainer.learning.groups import TrainingGroup
from trainer.run.state.journal import JournalFile
from trainer.run.state.trainer_state import TrainerState


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGroup:
    """One group of an accepted file.

    Args:
        prompt_index: Index of the prompt.
        solved: Share of correct samples; None if a sample is undecided.
        group: Training data; None if a sample is undecided.
        distance: Mean distance of the samples from the target length, in the environment's unit; None without a target
            length or if a sample is undecided.
    """

    prompt_index: int
    solved: float | None
    group: TrainingGroup | None
    distance: float | None = None

    @property
    def has_signal(self) -> bool:
        """Returns whether the group's rewards differ; otherwise it gives no gradient."""
        return self.group is not None and self.group.has_signal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenFile:
    """An accepted file and its groups.

    Args:
        entry: Journal entry of the file.
        groups: Groups in the file's order.
        tokens: Number of generated tokens.
    """

    entry: JournalFile
    groups: tuple[SeenGroup, ...]
    tokens: int

    @property
    def useful(self) -> int:
        """Number of groups whose rewards differ."""
        return sum(group.has_signal for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Groups selected for a step's batch.

    Args:
        places: File number and group number of each group, in training order.
        left: Number of unused groups by reason.
    """

    places: tuple[tuple[int, int], ...]
    left: Counter[str] = field(default_factory=Counter)


def in_lease_order(files: Iterable[SeenFile]) -> list[SeenFile]:
    """Returns a step's files in lease order: by node and slot index, independent of the order of arrival."""
    return sorted(files, key=lambda file: (file.entry.node, file.entry.index))


def choose(files: Sequence[SeenFile], *, step: int, most: int, seed: int) -> Chosen:
    """Selects the batch: a random choice, determined by the seed, among the groups whose rewards differ.

    The choice favours neither fast nodes nor nodes with low addresses. Otherwise a provider could gain from generating
    keys until one has a low address.

    Args:
        files: Files in lease order, from `in_lease_order`.
        step: Number of the step.
        most: Maximum groups of a batch.
        seed: The run's seed.
    """
    useful = [
        (number, place)
        for number, file in enumerate(files)
        for place, seen in enumerate(file.groups)
        if seen.has_signal
    ]
    Random(f"muster-batch-v1:{seed}:{step}").shuffle(useful)
    places = useful[:most]
    left = unused(files, places)
    return Chosen(places=tuple(places), left=left)


def unused(files: Sequence[SeenFile], places: Iterable[tuple[int, int]]) -> Counter[str]:
    """Counts unused groups by reason: `undecided`, `surplus` or `no-signal`."""
    used, left = set(places), Counter[str]()
    for number, file in enumerate(files):
        for place, seen in enumerate(file.groups):
            if (number, place) not in used:
                left["undecided" if seen.group is None else "surplus" if seen.has_signal else "no-signal"] += 1
    return left


def groups_at(files: Sequence[SeenFile], places: Iterable[tuple[int, int]]) -> list[TrainingGroup]:
    """Returns the groups at the given places.

    Raises:
        LookupError: A group contains a sample whose reward is undecided, so it can't be used.
    """
    found = []
    for number, place in places:
        group = files[number].groups[place].group
        if group is None:
            raise LookupError(f"group {place} of {files[number].entry.key} is undecided and can't be trained on")
        found.append(group)
    return found


def solved_shares(files: Iterable[SeenFile]) -> list[tuple[int, float]]:
    """Returns prompt index and share of correct samples of every decided group, for the difficulty pools."""
    return [(seen.prompt_index, seen.solved) for file in files for seen in file.groups if seen.solved is not None]


def signal_share(files: Iterable[SeenFile], *, before: float, weight: int = 16) -> float:
    """Returns the smoothed share of groups whose rewards differ, in [0.05, 1].

    Args:
        files: Files of the step.
        before: Share before this step.
        weight: Number of groups of this step that have the same weight as `before`.
    """
    counted = [(len(file.groups), file.useful) for file in files]
    seen, useful = sum(one for one, _ in counted), sum(two for _, two in counted)
    return max(0.05, min(1.0, (before * weight + useful) / (weight + seen)))


def after_batch(state: TrainerState, files: Sequence[SeenFile], *, learned: bool) -> TrainerState:
    """Returns the trainer state after a step. The policy's weights are not part of this state."""
    return replace(
        state,
        step=state.step + 1,
        pools=state.pools.after(solved_shares(files)),
        signal_share=signal_share(files, before=state.signal_share),
        empty_steps=0 if learned else state.empty_steps + 1,
    )


def staleness(groups: Iterable[TrainingGroup], *, step: int) -> dict[int, int]:
    """Returns the number of groups by staleness in steps."""
    return dict(sorted(Counter(step - group.version for group in groups).items()))
