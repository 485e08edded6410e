"""Ports of a devnet's services.

A continued devnet (`--keep`) listens on the ports of its last start, so that URLs in configurations of workers, in
bookmarks and in scripts stay valid.
"""

from __future__ import annotations

import contextlib
import json
import socket

from cli.devnet.directory import DevnetDirectory
from ledger.devchain import free_port
from protocol.runtime.files import write_atomically

_MOST_BYTES = 64 * 1024


class DevnetPorts:
    """Chooses a port for each service: the one of the last start if it is free, else any free one.

    Args:
        directory: Folder of the devnet. A damaged file of ports is ignored.
    """

    def __init__(self, directory: DevnetDirectory) -> None:
        self._path = directory.ports
        self._before = self._read()
        self._chosen: dict[str, int] = {}

    def of(self, service: str) -> int:
        """Returns the port of a service, which may be called by any name."""
        before = self._before.get(service)
        usable = before is not None and before not in self._chosen.values() and _is_free(before)
        self._chosen[service] = before if before is not None and usable else free_port()
        return self._chosen[service]

    def save(self) -> None:
        """Saves the ports for the next start; keeps the ports of services that do not run this time."""
        write_atomically(self._path, json.dumps(self._before | self._chosen, indent=1))

    def _read(self) -> dict[str, int]:
        with contextlib.suppress(OSError, ValueError):
            with self._path.open("rb") as file:
                content = json.loads(file.read(_MOST_BYTES))
            if isinstance(content, dict):
                return {
                    str(name): port
                    for name, port in content.items()
                    if isinstance(port, int) and not isinstance(port, bool) and 1024 <= port < 1 << 16
                }
        return {}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections of the last start may still be in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
