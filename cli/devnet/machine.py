"""Versions and hardware of the machine that a devnet runs on, for the report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cli.devnet.tasks import VLLM_PYTHON
from ledger.devchain import ChainKind
from protocol import __version__
from protocol.runtime.cpu_class import cpu_class
from rollouts.precision import EngineName
from worker.machine.gpus import GpuInventory
from worker.machine.hardware import operating_system, read_hardware

_GIBIBYTE = 1 << 30
_CHAINS = {ChainKind.EMBEDDED: "embedded development chain (py-evm)", ChainKind.ANVIL: "anvil"}


def describe_machine(folder: Path, *, engine: EngineName, chain: ChainKind) -> dict[str, str]:
    """Returns versions and hardware by name.

    Args:
        folder: Folder of the devnet; the free space of its file system is stated.
        engine: Engine that generates the rollouts.
        chain: Chain of the devnet.
    """
    hardware = read_hardware(folder, GpuInventory())
    facts = {
        "Muster": __version__,
        "Python": platform.python_version(),
        "torch": _version("torch"),
        "vLLM": _vllm_version() if engine is EngineName.VLLM else "",
        "chain": _CHAINS[chain],
        "system": operating_system(),
        "processor": f"{hardware.cpu_model} ({hardware.architecture})",
        "CPU class": cpu_class() or "none",
        "cores": str(hardware.cpu_cores),
        "memory": f"{hardware.memory_bytes / _GIBIBYTE:.1f} GiB",
        "free disk": f"{hardware.disk_free_bytes / _GIBIBYTE:.1f} GiB",
    }
    return {name: value for name, value in facts.items() if value}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _vllm_version() -> str:
    """Returns the version of vLLM in its own environment, from the name of its metadata folder; empty if unknown."""
    found = VLLM_PYTHON.parents[1].glob("lib/python*/site-packages/vllm*.dist-info")
    return next((folder.name.removesuffix(".dist-info").rpartition("-")[2] for folder in found), "")
