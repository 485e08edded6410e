"""Eligibility of nodes for an invite, by the owner's requirements and the ledger."""

from __future__ import annotations

from ledger.amounts import format_amount
from orchestrator.chain.interface import NodeLedgerStatus, PoolLedgerStatus
from orchestrator.scheduler.requirements import GIBIBYTE
from orchestrator.settings import Requirements
from protocol.wire.nodes import Hardware, gpu_fits


def lacks(hardware: Hardware, labels: dict[str, str], requirements: Requirements) -> str | None:
    """Returns the first requirement that a machine misses, as text; None if the machine meets all."""
    gpus = [
        gpu
        for gpu in hardware.gpus
        if gpu_fits(gpu, memory_bytes=requirements.min_gpu_memory_bytes, models=requirements.gpu_models)
    ]
    checks = (
        ("fitting GPUs", len(gpus), requirements.min_gpus, 1, ""),
        ("CPU cores", hardware.cpu_cores, requirements.min_cpu_cores, 1, ""),
        ("memory", hardware.memory_bytes, requirements.min_memory_bytes, GIBIBYTE, " GiB"),
        ("free disk", hardware.disk_free_bytes, requirements.min_disk_bytes, GIBIBYTE, " GiB"),
    )
    for resource, has, needs, unit, name in checks:
        if has < needs:
            return f"it has {has / unit:.4g}{name} of {resource} and the pool asks for {needs / unit:.4g}{name}"
    for name, value in requirements.labels.items():
        if labels.get(name) != value:
            return f"it lacks the label {name}={value}"
    return None


def refusal(status: NodeLedgerStatus, pool: PoolLedgerStatus) -> str | None:
    """Returns the reason why the ledger would refuse a node's join; None if it would accept the join."""
    free, needed = format_amount(status.free_stake), format_amount(status.needed_stake)
    reasons = (
        (not pool.active, "the pool is not active on the ledger"),
        (status.provider is None, "no provider has registered it on the ledger"),
        (status.banned, "it, or its provider, is banned from the pool"),
        (
            status.capacity < pool.min_capacity,
            f"its capacity on the ledger is {status.capacity}, and the pool asks for {pool.min_capacity}",
        ),
        (
            status.free_stake < status.needed_stake,
            f"its provider has {free} MUST of free stake, and joining takes {needed} MUST",
        ),
        (pool.members >= pool.max_nodes, f"the pool is full: {pool.members} of {pool.max_nodes} nodes"),
    )
    return next((reason for applies, reason in reasons if applies), None)
