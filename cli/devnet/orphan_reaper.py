"""Ends all processes and containers of a network when its supervisor dies, even by `kill -9`.

The supervisor starts the reaper with a pipe as standard input. The system closes the pipe when the supervisor dies,
even by a signal. The reaper then ends every process that has the network's id in its environment, descendants
included, and exits. Ids are random, so that the reaper can't mistake another network for its own.

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
"""Environment variable that identifies the processes of one network."""

_GRACE_SECONDS = 2.0
_ROUNDS = 20


class OrphanReaper:
    """Runs the reaper as a separate process.

    Leaving the context closes the reaper's pipe. The reaper then cleans up once more and exits.

    Args:
        network_id: Id in the environment of the network's processes.
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
        """Makes the reaper remove the containers of these nodes, too.

        Docker keeps a worker's containers when the worker dies.
        """
        if self._process.stdin is not None:
            self._process.stdin.writelines(f"{node}\n" for node in nodes)
            self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def processes_of(network_id: str) -> Iterator[psutil.Process]:
    """Yields every running process of the network except the calling process."""
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.environ().get(NETWORK_ID) == network_id and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def end_network(network_id: str) -> int:
    """Ends every process of the network by SIGTERM, then SIGKILL; returns how many there were."""
    first = list(processes_of(network_id))
    for process in first:
        _deliver(process.terminate)
    psutil.wait_procs(first, timeout=_GRACE_SECONDS)
    for _ in range(_ROUNDS):  # a process may fork between the listing and the signal
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
    """Reads node addresses until standard input ends, then ends the network.

    The first command-line argument is the network's id.
    """
    nodes = [line.strip() for line in sys.stdin if line.strip()]
    end_network(sys.argv[1])
    if nodes:
        remove_containers(nodes)


if __name__ == "__main__":
    main()
