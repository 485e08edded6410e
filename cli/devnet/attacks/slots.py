"""Slots that are not this node's to do, and slots that it leases and lets go."""

from __future__ import annotations

import time
from collections.abc import Callable

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.identifiers import ZERO_DIGEST
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile

_FAR = 1_000
_SPARE = 0.05
"""The share of a lease that a slow node leaves for its submission."""


class OtherStep(Trick):
    """Asks for slots of a step that is over, or of one that has not come.

    Args:
        by: How many steps away.
    """

    def __init__(self, by: int) -> None:
        self._by = by

    def wish(self, step: int) -> int:
        """Returns an old step; before the first one ends, a future step, because a slot of step 0 would be honest."""
        return step + self._by if step + self._by >= 0 else step + _FAR


class PickySlots(Trick):
    """Works on every slot, and submits only results at least as good as the average of earlier ones."""

    def __init__(self) -> None:
        self._seen: list[float] = []

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile | None:
        """The file, or nothing if it is worse than usual."""
        file = bench.file(grant)
        mean = sum(sample.reward for sample in file.samples) / len(file.samples)
        usual = sum(self._seen) / len(self._seen) if self._seen else mean
        self._seen.append(mean)
        return file if mean >= usual else None


class SlotShopper(Trick):
    """Foretells its next slot from what is public, and leases it only if it pleases: if its seed is even."""

    def __init__(self) -> None:
        self._last: tuple[AttackToolkit, SlotGrant] | None = None

    def wish(self, step: int) -> int:
        """The step if the next slot pleases; else one that has no slots, as if it did not ask."""
        if self._last is None:
            return step
        bench, grant = self._last
        return step if self.foretell(bench, grant)[0] % 2 == 0 else step + _FAR

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """The honest file."""
        self._last = bench, grant
        return bench.file(grant)

    @staticmethod
    def foretell(bench: AttackToolkit, grant: SlotGrant) -> bytes:
        """The seed of the slot after this one, as far as it can be known: its lease's salt can't."""
        following = grant.lease.model_copy(update={"index": grant.lease.index + 1, "salt": ZERO_DIGEST})
        return bench.seed(grant.model_copy(update={"lease": following}))


class Slow(Trick):
    """Works on every slot, and submits when the lease has nearly expired.

    Args:
        now: Unix time in seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(self, *, now: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> None:
        self._now = now
        self._sleep = sleep

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """The honest file, late."""
        began = self._now()
        file = bench.file(grant)
        last = grant.lease.expiry - _SPARE * max(0.0, grant.lease.expiry - began)
        while (left := last - self._now()) > 0 and not bench.is_stopped():
            self._sleep(min(1.0, left))
        return file


STALE, FUTURE = -9, _FAR
"""Farther back than a node that is eight steps ahead (`off-policy`) may still work, and farther ahead than any."""
