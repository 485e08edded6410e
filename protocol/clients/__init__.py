"""Typed clients of the services.

`DiscoveryClient` is for nodes and pools, `NodeClient` for workers, `OrchestratorClient` for pool owners. Each is
imported when it is first used, with the wire models that it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.clients.discovery import DiscoveryClient
    from protocol.clients.node import NodeClient
    from protocol.clients.orchestrator import OrchestratorClient
    from protocol.http.location import ServiceLocation

__all__ = ["DiscoveryClient", "NodeClient", "OrchestratorClient", "ServiceLocation"]

_MODULES = {
    "DiscoveryClient": "protocol.clients.discovery",
    "NodeClient": "protocol.clients.node",
    "OrchestratorClient": "protocol.clients.orchestrator",
    "ServiceLocation": "protocol.http.location",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
