"""Typed clients of the services: `DiscoveryClient`, `NodeClient` for workers, `OrchestratorClient` for pool owners."""

from protocol.clients.discovery import DiscoveryClient
from protocol.clients.location import ServiceLocation
from protocol.clients.node import NodeClient
from protocol.clients.orchestrator import OrchestratorClient

__all__ = ["DiscoveryClient", "NodeClient", "OrchestratorClient", "ServiceLocation"]
