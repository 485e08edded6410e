"""Fixtures for the shardcast tests."""

from tests.kit.shardcast import client_of, origin, stack

__all__ = ["client_of", "origin", "stack"]
