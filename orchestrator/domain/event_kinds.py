"""Kinds of the pool's events, and the patterns by which readers and webhooks choose some of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from protocol.wire.assignments import AssignmentState
from protocol.wire.nodes import NodeState
from protocol.wire.tasks import TaskState

EVENT_KINDS: tuple[str, ...] = tuple(
    sorted(
        {
            "node.joined",
            *(f"node.{state}" for state in NodeState),
            *(f"task.{verb}" for verb in ("created", "changed", "secrets-changed", "deleted")),
            *(f"task.{state}" for state in TaskState),
            *(f"assignment.{verb}" for verb in ("placed", "renewed", "ended")),
            *(f"assignment.{state}" for state in AssignmentState),
            "command.acknowledged",
            "run.checkpoint",
            "run.step-closed",
            *(f"verdict.{outcome}" for outcome in ("accepted", "rejected", "forged", "expired")),
            *(f"dispute.{what}" for what in ("opened", "decided", "lost")),
            *(f"slash.{cause}" for cause in ("forgery", "dispute")),
            *(f"payout.{what}" for what in ("earned", "claimed")),
            *(f"{group}.reverted" for group in ("verdict", "dispute", "slash", "payout")),
        }
    )
)
"""All kinds of events that this release writes."""


def wants(patterns: Collection[str], kind: str) -> bool:
    """Returns whether patterns choose events of a kind.

    A pattern is the name of a kind, or a prefix of names that ends with a dot. No patterns choose all events.
    """
    return not patterns or any(kind == one or (one.endswith(".") and kind.startswith(one)) for one in patterns)


def unknown_patterns(patterns: Collection[str]) -> list[str]:
    """Returns the patterns that choose no kind of event."""
    return [one for one in patterns if not any(wants((one,), kind) for kind in EVENT_KINDS)]


def hint_for(pattern: str) -> str:
    """Returns a hint for an unknown pattern: a similar kind, and all allowed ones."""
    close = difflib.get_close_matches(pattern, EVENT_KINDS, n=1, cutoff=0.6)
    known = f"kinds are {', '.join(EVENT_KINDS)}, or a prefix of them with a dot, such as node."
    return f"did you mean {close[0]}? {known}" if close else known
