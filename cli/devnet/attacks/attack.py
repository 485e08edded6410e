"""Base of all attacks: the action, its gain, and the expected outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.verdicts import ReasonCode
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import write_rollouts
from worker.delivery.pool_delivery import PoolDelivery

if TYPE_CHECKING:
    from cli.devnet.attacks.toolkit import AttackToolkit


class End(StrEnum):
    """Outcome of a cheat's work."""

    SLASHED = "slashed"
    """Rejected as forged: not paid, stake is lost, and the node leaves the pool."""
    UNPAID = "rejected, unpaid"
    """Rejected without a slash: an honest machine might, just, have made it."""
    REFUSED = "refused at the door"
    """It never becomes work."""
    EXPIRES = "expires unpaid"
    """It is work that nobody can judge."""
    IN_VAIN = "paid as honest work, gains nothing"
    """It is honest work; what the node does besides changes nothing."""


_COSTS = {
    End.SLASHED: "the penalty",
    End.UNPAID: "its reward, and after a few of them its leases",
    End.REFUSED: "nothing, and it gains nothing",
    End.EXPIRES: "its leases: what it does not deliver counts against it",
    End.IN_VAIN: "nothing, and it gains nothing",
}
_HARMS = {
    End.SLASHED: "one examination by a validator",
    End.UNPAID: "one examination by a validator",
    End.REFUSED: "a request that is refused",
    End.EXPIRES: "a slot, until it is leased to another node",
    End.IN_VAIN: "nothing",
}


class Trick:
    """Hooks where a node could cheat. The base class is honest; each attack overrides one method.

    Each node has its own instance, which may keep state.
    """

    def wish(self, step: int) -> int:
        """The step of which a slot is asked for, when `step` is wanted."""
        return step

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile | None:
        """The slot's file; None to let the slot go."""
        return bench.file(grant)

    def write(self, path: Path, file: RolloutFile) -> None:
        """Puts the file's bytes where the worker takes them."""
        write_rollouts(path, file)

    def units(self, file: RolloutFile) -> int:
        """The work units that are claimed."""
        return file.units


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One way to be paid for what was not done.

    Args:
        name: Its name on the command line.
        does: What it does, in one line.
        gains: Why it would pay.
        end: What becomes of its work.
        by: What stops it: a check, or a door before the checks.
        reasons: The reasons that a verdict may give; empty if there is none.
        trick: Makes the changed node.
        delivery: What carries its files to the pool.
        costs: What it costs the cheat; by default what its end costs everybody.
        harms: What it costs others; by default the same.
    """

    name: str
    does: str
    gains: str
    end: End
    by: str
    reasons: frozenset[ReasonCode] = frozenset()
    trick: Callable[[], Trick] = Trick
    delivery: type[PoolDelivery] = PoolDelivery
    costs: str = ""
    harms: str = ""

    def __post_init__(self) -> None:
        """Fills in what its end costs."""
        object.__setattr__(self, "costs", self.costs or _COSTS[self.end])
        object.__setattr__(self, "harms", self.harms or _HARMS[self.end])

    def row(self) -> str:
        """Its row in the table of `docs/attacks.md`."""
        codes = ", ".join(str(int(reason)) for reason in sorted(self.reasons))
        end = f"{self.end.value} ({codes})" if codes else self.end.value
        cells = (f"`{self.name}`", self.does, self.gains, end, self.by, self.costs, self.harms)
        return f"| {' | '.join(cells)} |"
