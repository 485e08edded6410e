"""Attacks with slots of other steps, or slots that the node gives up, predicts or delays."""

from __future__ import annotations

import time
from collections.abc import Callable

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.identifiers import ZERO_DIGEST
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile

_FAR = 1_000
"""Offset to a step so far ahead that no run offers slots of it."""
_SPARE = 0.05
"""Share of the time left in a lease that `Slow` reserves for the submission."""


class OtherStep(Trick):
    """Requests slots of a step that is over, or of a future one.

    Args:
        by: Offset from the current step; negative for past steps.
    """

    def __init__(self, by: int) -> None:
        self._by = by

    def wish(self, step: int) -> int:
        """Returns the step at the offset, or a future step if the offset leads below step 0.

        Step 0 would be no attack, because a request for a slot of step 0 may be honest.
        """
        return step + self._by if step + self._by >= 0 else step + _FAR


class PickySlots(Trick):
    """Works on every slot, but submits a file only if its mean reward reaches that of earlier slots."""

    def __init__(self) -> None:
        self._seen: list[float] = []

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile | None:
        """Returns the file, or None if its mean reward is below the average of earlier slots."""
        file = toolkit.file(grant)
        mean = sum(sample.reward for sample in file.samples) / len(file.samples)
        usual = sum(self._seen) / len(self._seen) if self._seen else mean
        self._seen.append(mean)
        return file if mean >= usual else None


class SlotShopper(Trick):
    """Predicts the seed of its next slot from public data, and leases the slot only if the seed is even."""

    def __init__(self) -> None:
        self._last: tuple[AttackToolkit, SlotGrant] | None = None

    def wish(self, step: int) -> int:
        """Returns the step if the first byte of the predicted seed is even, else a step without slots."""
        if self._last is None:
            return step
        toolkit, grant = self._last
        return step if self.foretell(toolkit, grant)[0] % 2 == 0 else step + _FAR

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the honest file."""
        self._last = toolkit, grant
        return toolkit.file(grant)

    @staticmethod
    def foretell(toolkit: AttackToolkit, grant: SlotGrant) -> bytes:
        """Returns the predicted seed of the next slot; a zero stands for the salt, which the node can't know."""
        following = grant.lease.model_copy(update={"index": grant.lease.index + 1, "salt": ZERO_DIGEST})
        return toolkit.seed(grant.model_copy(update={"lease": following}))


class Slow(Trick):
    """Works on every slot, and submits when the lease has nearly expired.

    Args:
        now: Returns the Unix time in seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(self, *, now: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> None:
        self._now = now
        self._sleep = sleep

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the honest file shortly before the lease expires."""
        began = self._now()
        file = toolkit.file(grant)
        last = grant.lease.expiry - _SPARE * max(0.0, grant.lease.expiry - began)
        while (left := last - self._now()) > 0 and not toolkit.is_stopped():
            self._sleep(min(1.0, left))
        return file


STALE, FUTURE = -9, _FAR
"""Offsets to a past and to a future step for which no orchestrator leases slots.

The widest window, of `off-policy` runs, lets nodes work eight steps ahead of the trainer. A step nine below a node's
current step is therefore over.
"""
