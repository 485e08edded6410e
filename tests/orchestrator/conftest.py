"""Fixtures for the orchestrator tests."""

from tests.kit.orchestrator import make_pool, pool

__all__ = ["make_pool", "pool"]
