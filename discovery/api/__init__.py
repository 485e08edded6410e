"""The REST API of the discovery service."""
