"""Fixtures for the validator tests."""

from tests.kit.chain import development_chain, development_process
from tests.kit.validators import pool
from tests.kit.world import founded, world

__all__ = ["development_chain", "development_process", "founded", "pool", "world"]
