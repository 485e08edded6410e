"""Streaming: computes gradients of groups as they are accepted, while other groups of the step are generated.

The optimiser performs one step, when the batch is complete; with max_staleness 0 one version generates the whole batch
(Periodic Asynchrony, section 4). Sums are divided by the totals of the whole batch, so the order of arrival affects
only the rounding. The journal records the order, so that a resumed run repeats the step bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from protocol.identifiers import Digest
from trainer.learning.groups import TrainingGroup
from trainer.learning.learner import Learner
from trainer.run.gathering.batches import Chosen, SeenFile, unused
from trainer.run.learner.thread import LearnerThread


class StreamedStep:
    """A step whose gradients are computed as groups arrive.

    Args:
        learner: Accumulates the gradients.
        in_thread: Thread that runs the learner.
        step: Number of the step.
        most: Maximum groups of the batch.
    """

    def __init__(self, learner: Learner, in_thread: LearnerThread, *, step: int, most: int) -> None:
        self._learner = learner
        self._in_thread = in_thread
        self._step = step
        self._most = most
        self._used: list[tuple[Digest, int]] = []
        self._parts: list[int] = []

    async def feed(self, files: Sequence[SeenFile]) -> None:
        """Adds the gradients of new groups with differing rewards.

        If the verdict on a file in use was overturned, the step starts over with the files that are still accepted.
        """
        if not {key for key, _ in self._used} <= {file.entry.key for file in files}:
            self._used, self._parts = [], []
        new: list[TrainingGroup] = []
        known = set(self._used)
        for file in files:
            for place, seen in enumerate(file.groups):
                room = len(self._used) < self._most
                if seen.group is not None and seen.has_signal and room and (file.entry.key, place) not in known:
                    new.append(seen.group)
                    self._used.append((file.entry.key, place))
        if not new:
            return
        if not self._parts:
            await self._in_thread(self._learner.begin, step=self._step)
        self._parts.append(len(new))
        await self._in_thread(self._learner.add, new)

    def close(self, files: Sequence[SeenFile]) -> tuple[Chosen, tuple[int, ...]]:
        """Returns the batch, and the sizes of the parts in which its groups were added.

        There are no parts if the verdict on a file in use was overturned: the computed gradients include that file, so
        the caller must compute the batch's gradients again.

        Args:
            files: Files that are accepted when the step is closed, in lease order.
        """
        place_of = {file.entry.key: number for number, file in enumerate(files)}
        kept = [(place_of[key], group) for key, group in self._used if key in place_of]
        parts = tuple(self._parts) if len(kept) == len(self._used) else ()
        left: Counter[str] = unused(files, kept)
        return Chosen(places=tuple(kept), left=left), parts
