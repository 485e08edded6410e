"""Fixtures for the tests of clients in other languages."""

from tests.kit.typescript import typescript_client

__all__ = ["typescript_client"]
