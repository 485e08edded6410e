"""Checks of the machine: GPUs, processors, memory and disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil

from protocol.runtime.cpu_class import cpu_class
from protocol.runtime.findings import DoctorFinding, failure, ok, warning
from protocol.wire.nodes import Hardware
from worker.machine.gpus import GpuInventory

GIB = 1 << 30
LEAST_MEMORY = 2 * GIB
"""Memory in bytes below which a machine can't join."""
LEAST_DISK = 5 * GIB
"""Free disk space in bytes below which a machine can't join."""
COMFORTABLE_DISK = 50 * GIB
"""Free disk space in bytes below which the doctor warns."""


def check_gpus(inventory: GpuInventory, *, devices: Path = Path("/dev")) -> DoctorFinding:
    """Counts GPUs by model; warns if there are NVIDIA devices but no driver."""
    if inventory.gpus:
        counted = Counter(f"{found.gpu.model} with {found.gpu.memory_bytes / GIB:.0f} GiB" for found in inventory.gpus)
        text = ", ".join(f"{count} of {kind}" for kind, count in counted.items())
        text += f", driver {inventory.driver}"
        text += f", class {', '.join(inventory.classes)}" if inventory.classes else ""
        if inventory.error:
            return warning("gpu", f"{text}; {inventory.error}", "see `nvidia-smi` and the kernel's log")
        return ok("gpu", text)
    if inventory.error or list(devices.glob("nvidia[0-9]*")):
        return warning(
            "gpu", inventory.error or "there are NVIDIA devices but no driver", "install or reload the NVIDIA driver"
        )
    return ok("gpu", "none: this node gets no tasks that need one")


def check_processor(hardware: Hardware) -> DoctorFinding:
    """Checks the number of cores that this process may use; shows the processor's class."""
    named = cpu_class()
    found = f"{hardware.cpu_cores} cores, {hardware.cpu_model} ({hardware.architecture})"
    found += f", class {named}" if named else ""
    if hardware.cpu_cores < 2:
        return warning(
            "cpu", found, "give the worker at least two cores, so that task and worker do not share one core"
        )
    return ok("cpu", found)


def check_memory(hardware: Hardware) -> DoctorFinding:
    """Checks total and available memory."""
    free = psutil.virtual_memory().available
    found = f"{hardware.memory_bytes / GIB:.1f} GiB, {free / GIB:.1f} GiB of it available"
    if hardware.memory_bytes < LEAST_MEMORY:
        return failure("memory", found, f"at least {LEAST_MEMORY / GIB:.0f} GiB are needed")
    if free < LEAST_MEMORY:
        return warning("memory", found, "close other programs: tasks are killed when the memory is used up")
    return ok("memory", found)


def check_disk(place: Path) -> DoctorFinding:
    """Checks the free space on the file system of the task volumes."""
    existing = next(parent for parent in (place, *place.parents) if parent.exists())
    free = psutil.disk_usage(str(existing)).free
    found = f"{free / GIB:.1f} GiB free for volumes in {place}"
    if free < LEAST_DISK:
        return failure(
            "disk", found, f"free {LEAST_DISK / GIB:.0f} GiB, or choose another state directory with --state"
        )
    if free < COMFORTABLE_DISK:
        return warning("disk", found, "model weights are large: 50 GiB or more are recommended")
    return ok("disk", found)
