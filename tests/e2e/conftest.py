"""Fixtures for the end-to-end tests."""

from tests.kit.devnet import devnet
from tests.kit.typescript import typescript_client

__all__ = ["devnet", "typescript_client"]
