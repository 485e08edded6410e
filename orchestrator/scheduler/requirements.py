"""Compares a task's requirements with the hardware of nodes, and explains why no node fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.wire.nodes import Hardware, RuntimeKind, Software
from protocol.wire.tasks import GpuNeeds, TaskSpec

GIBIBYTE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHardware:
    """Hardware and software as a node reported them."""

    hardware: Hardware | None
    software: Software | None = None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One requirement of a task that a node does not meet."""

    need: str
    """The requirement as text, such as `8 GPUs with 80 GiB` or `label zone=eu`."""
    has: float
    """Amount that the node has; used to find the node that comes closest."""
    found: str
    """Amount that the node has, as text, such as `2`."""


def shortfalls(machine: NodeHardware, spec: TaskSpec) -> list[Shortfall]:
    """Returns all requirements of `spec` that `machine` misses; empty if the task fits."""
    hardware = machine.hardware
    if hardware is None:
        return [Shortfall("a node that reported its hardware to discovery", 0, "none")]
    resources, selector = spec.resources, spec.selector
    memory = max(resources.memory_bytes, selector.min_memory_bytes)
    disk = max(resources.disk_bytes, selector.min_disk_bytes)
    missing: list[Shortfall] = []
    if spec.gpus.count:
        missing.extend(_gpus(machine, hardware, spec.gpus))
    if resources.cpus > hardware.cpu_cores:
        missing.append(Shortfall(f"{resources.cpus:g} CPU cores", hardware.cpu_cores, str(hardware.cpu_cores)))
    if memory > hardware.memory_bytes:
        missing.append(_bytes(memory, "memory", hardware.memory_bytes))
    if disk > hardware.disk_free_bytes:
        missing.append(_bytes(disk, "free disk", hardware.disk_free_bytes))
    if selector.architecture is not None and selector.architecture != hardware.architecture:
        missing.append(Shortfall(f"architecture {selector.architecture}", 0, hardware.architecture))
    for name, value in sorted(selector.labels.items()):
        if machine.labels.get(name) != value:
            missing.append(Shortfall(f"label {name}={value}", 0, machine.labels.get(name, "none")))
    return missing


def size(machine: NodeHardware) -> tuple[int, int, int]:
    """Returns the sort key of machines from small to large.

    A task takes the smallest machine that fits, so that large machines stay free for large tasks.
    """
    hardware = machine.hardware
    if hardware is None:
        return (0, 0, 0)
    return (len(hardware.gpus), hardware.memory_bytes, hardware.cpu_cores)


def explain(lacking: Iterable[list[Shortfall]]) -> str:
    """Returns the reason why no node fits a task.

    The reason is the first requirement that all nodes miss, with the amount of the closest node. If there is no such
    requirement, the reason lists the three requirements that most nodes miss.
    """
    nodes = list(lacking)
    if not nodes:
        return "the pool has no healthy node"
    every = Counter(short.need for node in nodes for short in {short.need: short for short in node}.values())
    for short in nodes[0]:
        if every[short.need] == len(nodes):
            best = max((other for node in nodes for other in node if other.need == short.need), key=lambda one: one.has)
            return f"needs {short.need}, {_nearest(len(nodes))} has {best.found}"
    parts = ", ".join(f"{count} of {len(nodes)} lack {need}" for need, count in every.most_common(3))
    return f"no node has everything it needs: {parts}"


def _nearest(nodes: int) -> str:
    return "the only node" if nodes == 1 else "the largest node"


def _bytes(needed: int, what: str, has: int) -> Shortfall:
    return Shortfall(f"{needed / GIBIBYTE:.4g} GiB of {what}", has, f"{has / GIBIBYTE:.4g} GiB")


def _gpus(machine: NodeHardware, hardware: Hardware, needs: GpuNeeds) -> list[Shortfall]:
    fitting = [gpu for gpu in hardware.gpus if needs.accepts(gpu)]
    if len(fitting) < needs.count:
        needed = "GPU" if needs.count == 1 else "GPUs"
        if needs.models:
            needed += f" ({' or '.join(needs.models)})"
        if needs.memory_bytes:
            needed += f" with {needs.memory_bytes / GIBIBYTE:.4g} GiB"
        return [Shortfall(f"{needs.count} {needed}", len(fitting), str(len(fitting)))]
    software = machine.software
    if software is not None and not software.gpu_containers and RuntimeKind.PROCESS not in software.runtimes:
        return [Shortfall("GPUs inside containers (NVIDIA container toolkit)", 0, "none")]
    return []
