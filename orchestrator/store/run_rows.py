"""Typed rows of a run in Redis: the run's state, the counts of a step, and a slot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.domain.lease_terms import Budget
from orchestrator.domain.slots import Counted, Slot, SlotState, StoredFileState
from orchestrator.domain.steps import StepCount
from protocol.identifiers import Address, Digest, address
from protocol.verdicts import Outcome

NO_DIGEST = Digest("")
"""Placeholder for a digest, hash or key that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of the run."""

    revision: str = ""
    ready: bool = False
    """Whether the ledger was read to its end after Redis was empty. Before that, accepted work is not known."""
    floor: int = 0
    """First open step; all steps below are closed."""
    base: int = 0
    """First slot index of each node. It is raised after a loss of Redis, so that no index is leased again."""
    version: int | None = None
    attempt: int = 0
    digest: Digest = NO_DIGEST
    block: int = 0
    publisher: Address | None = None
    units: int = 0
    """Maximum work units of a group."""
    relays: tuple[str, ...] = ()
    arithmetic: tuple[str, ...] = ()
    """Engines and data types with which paid work may be generated, as set by the trainer; empty if it set none."""
    budget: Budget = field(default_factory=lambda: Budget(units=0, unit=1, lease=0))
    """Number of work units that the free escrow can pay for."""
    price: int = 0
    """Price per work unit, in 10⁻¹⁸ MUST."""
    penalty: int = 0
    """Stake that is slashed per work unit of forged work, in 10⁻¹⁸ MUST."""
    notice_s: int = 0
    """Notice period of the pool. Escrow and membership are guaranteed only for leases that end within this period."""
    settled_s: int = 0
    """Maximum time from a submission until its work is final, in seconds: judge, challenge and dispute periods."""
    judged_s: int = 0
    """Time after a submission in which validators may judge the work, in seconds."""
    active: bool = False
    synced_ms: int = 0
    """Time up to which the ledger was read, in Unix milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """Row of a step in Redis."""

    count: StepCount
    stated: bool
    """Whether the trainer set the step's demand; otherwise it is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """Row of a slot in Redis."""

    id: str
    revision: str = ""
    step: int
    index: int
    node: Address
    provider: Address | None
    version: int
    digest: Digest
    groups: int
    max_units: int
    expiry: int
    """End of the lease, in Unix seconds."""
    granted_ms: int = 0
    waits_until_ms: int = 0
    """Time until which the step waits for the slot, in Unix milliseconds; 0 if Redis lost it."""
    excused: bool = False
    """Whether a missing delivery is excused, because the pool removed the node, or the run is a serving run."""
    late: bool = False
    """Whether the slot's work arrived so late that it counts as a failure."""
    beacon: Digest = NO_DIGEST
    beacon_block: int = 0
    slot: Slot
    ended_ms: int = 0
    key: Digest = NO_DIGEST
    units: int = 0
    """Number of work units in the submission."""
    sha256: Digest = NO_DIGEST
    block: int = 0
    at_ms: int = 0
    """Time at which the submission was read on the ledger, in Unix milliseconds; 0 before."""
    transaction: Digest = NO_DIGEST
    reason: int = 0
    audit_hash: Digest = NO_DIGEST
    judge: Address | None = None
    """Validator that gave the current verdict and uploaded its audit file."""
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReportedFile:
    """What a node reports about one accepted file."""

    groups: int
    figures: Mapping[str, float]


def slot_id(step: int, node: Address, index: int) -> str:
    """Returns the id of a slot."""
    return f"{step}:{node}:{index}"


def read_state(fields: Mapping[str, str]) -> RunState:
    """Parses the Redis hash of the run's state; missing fields get their initial values."""
    return RunState(
        revision=fields.get("rev", ""),
        ready=fields.get("ready") == "1",
        floor=int(fields.get("floor") or 0),
        base=int(fields.get("base") or 0),
        version=int(fields["version"]) if fields.get("version") else None,
        attempt=int(fields.get("attempt") or 0),
        digest=Digest(fields.get("digest", "")),
        block=int(fields.get("block") or 0),
        publisher=address(fields["publisher"]) if fields.get("publisher") else None,
        units=int(fields.get("units") or 0),
        relays=tuple(json.loads(fields.get("relays") or "[]")),
        arithmetic=tuple(json.loads(fields.get("arithmetic") or "[]")),
        budget=Budget(
            units=int(fields.get("escrow") or 0),
            unit=int(fields.get("unit_cost", "1")),
            lease=int(fields.get("lease_cost") or 0),
        ),
        price=int(fields.get("price") or 0),
        penalty=int(fields.get("penalty") or 0),
        notice_s=int(fields.get("notice") or 0),
        settled_s=int(fields.get("settled") or 0),
        judged_s=int(fields.get("judged") or 0),
        active=fields.get("active") == "1",
        synced_ms=int(fields.get("synced") or 0),
    )


def read_step(fields: Mapping[str, str], *, default_demand: int) -> StepRow:
    """Parses the Redis hash of a step."""
    count = StepCount(
        demand=int(fields.get("demand") or default_demand),
        rounds=int(fields.get("rounds") or 0),
        **{counted.value: int(fields.get(counted.value) or 0) for counted in Counted if counted.value},
    )
    return StepRow(count=count, stated="demand" in fields)


def read_slot(name: str, fields: Mapping[str, str]) -> SlotRow:
    """Parses the Redis hash of an existing slot."""
    outcome = Outcome(int(fields["outcome"])) if fields.get("outcome") else None
    numbers: dict[str, Any] = {
        attribute: int(fields.get(stored) or 0)
        for attribute, stored in {
            "step": "step",
            "index": "index",
            "version": "version",
            "groups": "groups",
            "max_units": "units",
            "expiry": "expiry",
            "granted_ms": "granted",
            "waits_until_ms": "waits_until",
            "beacon_block": "beacon_block",
            "ended_ms": "ended",
            "units": "worked",
            "block": "block",
            "at_ms": "at",
            "reason": "reason",
        }.items()
    }
    digests: dict[str, Any] = {
        attribute: Digest(fields.get(stored, ""))
        for attribute, stored in {
            "digest": "digest",
            "beacon": "beacon",
            "key": "key",
            "sha256": "sha256",
            "transaction": "transaction",
            "audit_hash": "audit",
        }.items()
    }
    return SlotRow(
        id=name,
        revision=fields["rev"],
        node=address(fields["node"]),
        provider=address(fields["provider"]) if fields.get("provider") else None,
        judge=address(fields["judge"]) if fields.get("judge") else None,
        slot=Slot(
            SlotState(fields["state"]), Counted(fields["counted"]), outcome, StoredFileState(fields.get("file", ""))
        ),
        excused=fields.get("excused") == "1",
        late=fields.get("late") == "1",
        figures=json.loads(fields.get("figures") or "{}"),
        **numbers,
        **digests,
    )
