"""Progress of the validator's loops, which the API and the metrics show."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LookCounts:
    """Numbers of second looks and disputes since this process started, by reason."""

    drawn: int = 0
    """Number of queued second looks at other validators' verdicts that this validator's secret drew."""
    after_failure: int = 0
    """Number of queued second looks at other validators' acceptances of a node whose later work failed."""
    disputes: int = 0
    """Number of queued disputes that this validator may decide."""
    doubtful: int = 0
    """Number of provisional acceptances by this validator of work whose node failed later; verdicts can't be
    withdrawn."""
    paid: int = 0
    """Number of queued second looks for which the pool's terms pay; each is delayed until this validator's turn."""
    confirmed: int = 0
    """Number of first verdicts that this validator confirmed on the ledger."""
    contradicted: int = 0
    """Number of queued disputes in which another validator contradicted the first verdict."""


@dataclass(slots=True)
class LoopProgress:
    """Progress of the loops of one process; each loop updates its own field."""

    read_to: tuple[int, int] | None = None
    """Numbers of the next block to read and of the chain's newest block; None before the first read."""
    looks: LookCounts = field(default_factory=LookCounts)
    """Counts of the second-look loop."""
