"""Resource use of a devnet's processes on this machine."""

from __future__ import annotations

import psutil

from cli.devnet.report.model import ProcessCost
from cli.devnet.supervisor import Supervisor
from protocol.runtime.clock import Clock, SystemClock

_EVERY_S = 5.0
_MEBIBYTE = 1 << 20


class ProcessCosts:
    """Looks from time to time: what a process cost is forgotten by the system when it ends.

    Args:
        supervisor: Of the processes.
        clock: Whose time counts.
    """

    def __init__(self, supervisor: Supervisor, *, clock: Clock | None = None) -> None:
        self._supervisor = supervisor
        self._clock = clock or SystemClock()
        self._looked = float("-inf")
        self._known: dict[str, ProcessCost] = {}

    @property
    def known(self) -> list[ProcessCost]:
        """CPU and memory of each process with what it started, the dearest first; tasks in containers are not in it."""
        return sorted(self._known.values(), key=lambda one: -one.cpu_seconds)

    def look(self) -> None:
        """Looks again, if the last look is some seconds old."""
        now = self._clock.monotonic()
        if now - self._looked < _EVERY_S:
            return
        self._looked = now
        owners = {process.pid: process.name for process in self._supervisor.processes if process.pid is not None}
        seconds = dict.fromkeys(owners.values(), 0.0)
        memory = dict.fromkeys(owners.values(), 0.0)
        for process in psutil.process_iter():
            try:
                owner = _owner(process, owners)
                if owner is not None:
                    times = process.cpu_times()
                    seconds[owner] += times.user + times.system + times.children_user + times.children_system
                    memory[owner] += process.memory_info().rss / _MEBIBYTE
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        for name, spent in seconds.items():
            before = self._known.get(name)
            more = spent if before is None else max(spent, before.cpu_seconds)  # a part of it may have ended
            self._known[name] = ProcessCost(name=name, cpu_seconds=more, memory_mib=memory[name])


def _owner(process: psutil.Process, owners: dict[int, str]) -> str | None:
    """The supervised process that this one is, or descends from."""
    for one in (process, *process.parents()):
        if one.pid in owners:
            return owners[one.pid]
    return None
