"""Typed clients of the services.

`DiscoveryClient` is for nodes and pools, `NodeClient` for workers, `OrchestratorClient` for pool owners.
"""

from protocol.clients.discovery import DiscoveryClient
from protocol.clients.node import NodeClient
from protocol.clients.orchestrator import OrchestratorClient
from protocol.http.location import ServiceLocation

__all__ = ["DiscoveryClient", "NodeClient", "OrchestratorClient", "ServiceLocation"]
