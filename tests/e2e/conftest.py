"""Fixtures of this folder's tests."""

from tests.kit.devnet import devnet

__all__ = ["devnet"]
