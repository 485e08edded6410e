"""Simulated machines: network namespaces joined by a bridge, with links shaped by `tc tbf`.

Needs root and iproute2. Everything is in namespaces whose names begin with `muster-bench-` and the id of this process;
they are deleted at the end, also after an error, and nothing outside of them is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PREFIX = f"muster-bench-{os.getpid()}"
LATENCY_MS = 50
"""The queue of a link in milliseconds; a few dozen are usual."""


class NoNamespaces(RuntimeError):
    """This machine or user cannot create network namespaces."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A namespace with one address."""

    name: str
    address: str

    def inside(self, command: list[str]) -> list[str]:
        """Returns the command to run in the namespace."""
        return ["ip", "netns", "exec", self.name, *command]


@dataclass(slots=True)
class Network:
    """A bridge in a namespace that is also a machine, with no limit on its link."""

    hub: Machine
    made: list[str] = field(default_factory=list)

    def machine(self, label: str, *, megabits: float) -> Machine:
        """Adds a machine whose link has this rate in each direction."""
        number = len(self.made)
        machine = Machine(f"{PREFIX}-{label}", f"10.77.0.{number + 1}")
        far = f"far{number}"
        _add(machine.name, self.made)
        _ip("-n", machine.name, "link", "add", "eth0", "type", "veth", "peer", "name", far, "netns", self.hub.name)
        _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", "eth0")
        _ip("-n", self.hub.name, "link", "set", far, "master", "bridge", "up")
        for device in ("lo", "eth0"):
            _ip("-n", machine.name, "link", "set", device, "up")
        _shape(machine.name, "eth0", megabits)
        _shape(self.hub.name, far, megabits)
        return machine


@contextmanager
def network() -> Iterator[Network]:
    """Creates a bridge without machines; everything is deleted at the end.

    Raises:
        NoNamespaces: The bridge cannot be created here.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise NoNamespaces("shaped links need root, `ip` and `tc` (Debian: apt install iproute2)")
    made: list[str] = []
    hub = Machine(f"{PREFIX}-hub", "10.77.0.1")
    try:
        _add(hub.name, made)
        _ip("-n", hub.name, "link", "set", "lo", "up")
        _ip("-n", hub.name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub.name, "addr", "add", f"{hub.address}/24", "dev", "bridge")
        _ip("-n", hub.name, "link", "set", "bridge", "up")
        yield Network(hub, made)
    finally:
        for name in reversed(made):
            with suppress(NoNamespaces):
                _ip("netns", "del", name)


def _add(name: str, made: list[str]) -> None:
    _ip("netns", "add", name)
    made.append(name)


def _shape(namespace: str, device: str, megabits: float) -> None:
    burst = max(64 * 1024, int(megabits * 1e6 / 8 / 250))  # four milliseconds at that rate
    limits = ["rate", f"{int(megabits * 1e6)}bit", "burst", f"{burst}b", "latency", f"{LATENCY_MS}ms"]
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limits)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(f"{' '.join(command)}: {done.stderr.strip()}")
