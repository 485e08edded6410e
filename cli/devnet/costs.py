"""What the processes of a devnet cost this machine."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from cli.devnet.report.model import ProcessCost
from cli.devnet.supervisor import SupervisedProcess

_MEBIBYTE = 1 << 20


def process_costs(processes: Iterable[SupervisedProcess]) -> list[ProcessCost]:
    """CPU and memory of each process with what it started; a task in a container is not among them."""
    owners = {process.pid: process.name for process in processes if process.pid is not None}
    seconds = dict.fromkeys(owners.values(), 0.0)
    memory = dict.fromkeys(owners.values(), 0.0)
    for process in psutil.process_iter():
        try:
            owner = _owner(process, owners)
            if owner is None:
                continue
            times = process.cpu_times()
            seconds[owner] += times.user + times.system + times.children_user + times.children_system
            memory[owner] += process.memory_info().rss / _MEBIBYTE
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    found = [ProcessCost(name=name, cpu_seconds=seconds[name], memory_mib=memory[name]) for name in seconds]
    return sorted(found, key=lambda one: -one.cpu_seconds)


def _owner(process: psutil.Process, owners: dict[int, str]) -> str | None:
    """The supervised process that this one is, or descends from."""
    for one in (process, *process.parents()):
        if one.pid in owners:
            return owners[one.pid]
    return None
