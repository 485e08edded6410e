"""Data of a run as plain values, from which the report is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.devnet.report.model import ProcessCost
from ledger.events.types import LedgerEvent
from protocol.identifiers import Address, Digest
from protocol.wire.listings import RolloutItem
from protocol.wire.slots import LeaseView


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """A worker of the devnet with its provider."""

    name: str
    node: Address
    provider: Address
    cheat: str = ""
    stake_before: int = 0
    stake_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Times are Unix times in seconds.

    Args:
        about: How it was run.
        began: When the devnet began.
        ended: When its run was over.
        contributors: Everybody who worked.
        events: Of the ledger, in its order.
        blocks: When each block was first seen.
        progress: The trainer's lines.
        rollouts: What the orchestrator lists, whatever became of it.
        leases: Of each node.
        stored: When each object came into the store, by SHA-256.
        arrivals: When each node had a version, by version digest.
        steps_under_way: How many steps may be worked on at a time.
        processes: What they cost.
    """

    about: Mapping[str, str]
    began: float
    ended: float
    contributors: Sequence[Contributor]
    events: Sequence[LedgerEvent] = ()
    blocks: Mapping[int, float] = field(default_factory=dict)
    progress: Sequence[Mapping[str, Any]] = ()
    rollouts: Sequence[RolloutItem] = ()
    leases: Mapping[Address, Sequence[LeaseView]] = field(default_factory=dict)
    stored: Mapping[Digest, float] = field(default_factory=dict)
    arrivals: Mapping[Digest, Mapping[str, float]] = field(default_factory=dict)
    steps_under_way: int = 1
    processes: Sequence[ProcessCost] = ()
