"""Describes this machine's hardware, software and load for discovery and the orchestrator."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from protocol import __version__
from protocol.runtime.budgets import usable_cores
from protocol.versions import SPOKEN
from protocol.wire.nodes import Hardware, RuntimeKind, Software
from worker.machine.gpus import GpuInventory, read_gpu_load


def read_hardware(volumes: Path, inventory: GpuInventory) -> Hardware:
    """Returns this machine's hardware.

    Args:
        volumes: Directory of the task volumes. The free space of its file system is reported.
        inventory: Result of `read_gpus`.
    """
    return Hardware(
        cpu_model=_cpu_model()[:200],
        cpu_cores=usable_cores(),
        architecture=platform.machine()[:200],
        memory_bytes=psutil.virtual_memory().total,
        disk_free_bytes=psutil.disk_usage(str(volumes)).free,
        gpus=tuple(found.gpu for found in inventory.gpus),
        gpu_driver=inventory.driver,
    )


def read_software(runtimes: Sequence[RuntimeKind], *, docker_version: str | None, gpu_containers: bool) -> Software:
    """Returns versions of the worker, the operating system and the runtimes."""
    return Software(
        worker_version=__version__,
        protocol_version=SPOKEN.newest,
        operating_system=operating_system()[:200],
        runtimes=tuple(runtimes),
        docker_version=docker_version,
        gpu_containers=gpu_containers,
    )


def read_load(volumes: Path) -> Mapping[str, float]:
    """Returns gauges of this machine for a heartbeat.

    Utilisation is between 0 and 1, sizes are in bytes.
    """
    memory = psutil.virtual_memory()
    return {
        "cpu.busy": psutil.cpu_percent(interval=None) / 100,
        "cpu.load1": os.getloadavg()[0],
        "memory.used-bytes": float(memory.total - memory.available),
        "disk.free-bytes": float(psutil.disk_usage(str(volumes)).free),
        **read_gpu_load(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def operating_system() -> str:
    """Returns name of the operating system and version of its kernel, such as "Debian GNU/Linux 12 (bookworm), 6.18".

    Patch level and vendor suffix of the kernel are left out: pool owners don't need them, and attackers would.
    """
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        name = platform.system()
    return f"{name}, {'.'.join(platform.release().split('-')[0].split('.')[:2])}"
