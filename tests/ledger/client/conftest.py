"""Fixtures for the ledger client's tests."""

from tests.kit.world import founded, world

__all__ = ["founded", "world"]
