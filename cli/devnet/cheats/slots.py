"""Slots that are not this node's to do, and slots that it leases and lets go."""

from __future__ import annotations

from cli.devnet.cheats.bench import Bench
from cli.devnet.cheats.cheat import Trick
from protocol.wire.slots import SlotGrant
from rollouts.samples import RolloutFile

_FAR = 1_000


class OtherStep(Trick):
    """Asks for slots of a step that is over, or of one that has not come.

    Args:
        by: How many steps away.
    """

    def __init__(self, by: int) -> None:
        self._by = by

    def wish(self, step: int) -> int:
        """That step; while none is over yet, one that has not come: a slot of step 0 would be an honest one."""
        return step + self._by if step + self._by >= 0 else step + _FAR


class PickySlots(Trick):
    """Does every slot, and hands in only those that turned out at least as good as the ones before, on average."""

    def __init__(self) -> None:
        self._seen: list[float] = []

    def make(self, bench: Bench, grant: SlotGrant) -> RolloutFile | None:
        """The file, or nothing if it is worse than usual."""
        file = bench.file(grant)
        mean = sum(sample.reward for sample in file.samples) / len(file.samples)
        usual = sum(self._seen) / len(self._seen) if self._seen else mean
        self._seen.append(mean)
        return file if mean >= usual else None


STALE, FUTURE = -9, _FAR
"""Farther back than a node that is eight steps ahead (`off-policy`) may still work, and farther ahead than any."""
