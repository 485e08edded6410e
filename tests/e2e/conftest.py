"""Fixtures for the end-to-end tests."""

from tests.kit.devnet import devnet

__all__ = ["devnet"]
