"""Base of all attacks: the changed behaviour, its motive, and the expected outcome."""

from __future__ import annotations

from collections.abc import Callable, Set
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
    """Outcome of the work that an attack submits."""

    SLASHED = "slashed"
    """Judged forged: the work is not paid, the provider's stake is slashed, and the node is evicted."""
    UNPAID = "rejected, unpaid"
    """Rejected without a slash, because an honest node could conceivably have made the file."""
    REFUSED = "refused"
    """Refused by the object store, the orchestrator or the ledger, so that no work record exists."""
    EXPIRES = "expires unpaid"
    """The ledger has a work record, but no validator can judge the work."""
    IN_VAIN = "paid as honest work, gains nothing"
    """The work is honest; the node's other behaviour has no effect."""


_COST = {
    End.SLASHED: "the penalty",
    End.UNPAID: "the reward, and after several rejections its leases",
    End.REFUSED: "nothing, and it gains nothing",
    End.EXPIRES: "its leases: absent files count against its delivery rate",
    End.IN_VAIN: "nothing, and it gains nothing",
}
_HARM = {
    End.SLASHED: "one examination by a validator",
    End.UNPAID: "one examination by a validator",
    End.REFUSED: "a refused request",
    End.EXPIRES: "a slot, until it is leased to another node",
    End.IN_VAIN: "nothing",
}


class Trick:
    """Hooks of the rollout task that an attack may override, usually one or two of them.

    The base class is honest. Each node has its own instance, which may keep state. A `grant` is a leased slot.
    """

    def wish(self, step: int) -> int:
        """Returns the step for which the node requests a slot; an honest node requests one for `step`."""
        return step

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile | None:
        """Returns the rollout file of the slot, or None to give the slot up."""
        return toolkit.file(grant)

    def write(self, path: Path, file: RolloutFile) -> None:
        """Writes to `path` the bytes that the worker will submit."""
        write_rollouts(path, file)

    def units(self, file: RolloutFile) -> int:
        """Returns the work units to claim."""
        return file.units


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One way to cheat: to be paid for work that was not done, or to harm the run.

    Args:
        name: Name on the command line.
        action: What the node does, in one line.
        motive: Gain of the cheating node if there were no defence.
        defence: The mechanism that prevents the attack.
        reasons: Reason codes that a verdict on the work may have; empty if there is no verdict.
        end: Expected outcome of the submitted work.
        trick: Makes the hooks of one node.
        delivery: Class that submits the files to the pool.
        cost: Cost for the attacker; by default the cost of the outcome.
        harm: Cost for others; by default the harm of the outcome.
        dialogues: Whether the attack needs a version with dialogues.
    """

    name: str
    action: str
    motive: str
    defence: str
    reasons: Set[ReasonCode] = frozenset()
    end: End = End.SLASHED
    trick: Callable[[], Trick] = Trick
    delivery: type[PoolDelivery] = PoolDelivery
    cost: str = ""
    harm: str = ""
    dialogues: bool = False

    def __post_init__(self) -> None:
        """Sets `cost` and `harm` from the outcome if they are empty."""
        object.__setattr__(self, "cost", self.cost or _COST[self.end])
        object.__setattr__(self, "harm", self.harm or _HARM[self.end])

    def row(self) -> str:
        """Returns the attack's row in the table of `docs/attacks.md`."""
        codes = ", ".join(str(int(reason)) for reason in sorted(self.reasons))
        end = f"{self.end.value} ({codes})" if codes else self.end.value
        cells = (f"`{self.name}`", self.action, self.motive, end, self.defence, self.cost, self.harm)
        return f"| {' | '.join(cells)} |"
