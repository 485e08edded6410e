"""Outlives the supervisor by a moment and ends what it left behind, so that even `kill -9` leaves nothing running.

The supervisor starts it with a pipe as standard input. When the pipe closes, however the
supervisor died, the guardian ends every process that carries the network's id in its environment (children of children
too) and goes away. Ids are random, so that it can't mistake another network for its own.

    python -m cli.devnet.orphan_reaper NETWORK_ID
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import psutil

from cli.devnet.containers import remove_containers

NETWORK_ID = "MUSTER_NETWORK_ID"
"""The environment variable by which the processes of one network are known."""

_GRACE_SECONDS = 2.0
_ROUNDS = 20


class OrphanReaper:
    """Watches over this process from another one; a context manager whose end makes it look once more and go.

    Args:
        network_id: What the network's processes carry in their environment.
    """

    def __init__(self, network_id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cli.devnet.orphan_reaper", network_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != NETWORK_ID},
            text=True,
        )

    def watch_containers(self, nodes: Iterable[str]) -> None:
        """Also removes the containers of these workers: a Docker engine keeps them when their worker is gone."""
        if self._process.stdin is not None:
            self._process.stdin.writelines(f"{node}\n" for node in nodes)
            self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def processes_of(network_id: str) -> Iterator[psutil.Process]:
    """Every living process of the network, this one excepted."""
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.environ().get(NETWORK_ID) == network_id and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def end_network(network_id: str) -> int:
    """Ends every process of the network, first asking, then not; returns how many there were."""
    first = list(processes_of(network_id))
    for process in first:
        _deliver(process.terminate)
    psutil.wait_procs(first, timeout=_GRACE_SECONDS)
    for _ in range(_ROUNDS):  # a process may fork between the look and the kill
        left = list(processes_of(network_id))
        if not left:
            break
        for process in left:
            _deliver(process.kill)
        psutil.wait_procs(left, timeout=_GRACE_SECONDS)
    return len(first)


def _deliver(send: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        send()


def main() -> None:
    """Reads nodes until standard input ends, then ends the network named in the first argument."""
    nodes = [line.strip() for line in sys.stdin if line.strip()]
    end_network(sys.argv[1])
    if nodes:
        remove_containers(nodes)


if __name__ == "__main__":
    main()
