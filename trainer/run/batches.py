"""The batch of a step: which groups are learned, in which order. Pure, so that a resumed run makes it again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from trainer.learning.groups import TrainingGroup
from trainer.run.journal import JournalFile
from trainer.run.state import TrainerState


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGroup:
    """One group of an accepted file.

    Args:
        prompt_index: Of its prompt.
        solved: The share of its samples that were right; None if one could not be decided.
        group: What could be learned; None if one sample could not be decided.
        distance: How far its samples are from the wanted length, on average, in what the environment measures; None
            if no length is wanted, or one sample could not be decided.
    """

    prompt_index: int
    solved: float | None
    group: TrainingGroup | None
    distance: float | None = None

    @property
    def has_signal(self) -> bool:
        """Returns whether the group has signal."""
        return self.group is not None and self.group.has_signal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenFile:
    """One accepted file with what is in it.

    Args:
        entry: As the journal records it.
        groups: In the file's order.
        tokens: Generated ones.
    """

    entry: JournalFile
    groups: tuple[SeenGroup, ...]
    tokens: int

    @property
    def useful(self) -> int:
        """Returns the number of groups with signal."""
        return sum(group.has_signal for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Groups that a step learns, and groups that it leaves out.

    Args:
        places: File and group of each, in learning order.
        left: Numbers of groups left out, by reason.
    """

    places: tuple[tuple[int, int], ...]
    left: Counter[str] = field(default_factory=Counter)


def in_lease_order(files: Iterable[SeenFile]) -> list[SeenFile]:
    """Files of one step by node and index: who was fast is not first."""
    return sorted(files, key=lambda file: (file.entry.node, file.entry.index))


def choose(files: Sequence[SeenFile], *, step: int, most: int, seed: int) -> Chosen:
    """The batch: groups with signal, which the seed draws from all that are here.

    Neither who was fast nor who has a small address is learned first: addresses can be made until they are small.

    Args:
        files: In lease order.
        step: The step.
        most: The most groups of a batch.
        seed: The run's.
    """
    useful = [
        (number, place)
        for number, file in enumerate(files)
        for place, seen in enumerate(file.groups)
        if seen.has_signal
    ]
    random.Random(f"muster-batch-v1:{seed}:{step}").shuffle(useful)  # noqa: S311 - an order, not a secret
    places = useful[:most]
    left = unused(files, places)
    return Chosen(places=tuple(places), left=left)


def unused(files: Sequence[SeenFile], places: Iterable[tuple[int, int]]) -> Counter[str]:
    """Groups that are not learned, by why."""
    used, left = set(places), Counter[str]()
    for number, file in enumerate(files):
        for place, seen in enumerate(file.groups):
            if (number, place) not in used:
                left["undecided" if seen.group is None else "surplus" if seen.has_signal else "no-signal"] += 1
    return left


def groups_at(files: Sequence[SeenFile], places: Iterable[tuple[int, int]]) -> list[TrainingGroup]:
    """The groups at some places.

    Raises:
        LookupError: There is none at one of them.
    """
    found = []
    for number, place in places:
        group = files[number].groups[place].group
        if group is None:
            raise LookupError(f"group {place} of {files[number].entry.key} can't be learned")
        found.append(group)
    return found


def solved_shares(files: Iterable[SeenFile]) -> list[tuple[int, float]]:
    """Prompt and share of right samples of every group that was decided, for the pools."""
    return [(seen.prompt_index, seen.solved) for file in files for seen in file.groups if seen.solved is not None]


def signal_share(files: Iterable[SeenFile], *, before: float, weight: int = 16) -> float:
    """Returns the smoothed share of groups with signal, in (0, 1]."""
    counted = [(len(file.groups), file.useful) for file in files]
    seen, useful = sum(one for one, _ in counted), sum(two for _, two in counted)
    return max(0.05, min(1.0, (before * weight + useful) / (weight + seen)))


def after_batch(state: TrainerState, files: Sequence[SeenFile], *, learned: bool) -> TrainerState:
    """The state after a step; what the student knows stands beside it."""
    return replace(
        state,
        step=state.step + 1,
        pools=state.pools.after(solved_shares(files)),
        signal_share=signal_share(files, before=state.signal_share),
        empty_steps=0 if learned else state.empty_steps + 1,
    )


def staleness(groups: Iterable[TrainingGroup], *, step: int) -> dict[int, int]:
    """Returns the number of groups by age in steps."""
    return dict(sorted(Counter(step - group.version for group in groups).items()))
