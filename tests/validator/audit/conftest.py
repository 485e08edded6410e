"""Fixtures of this folder's tests."""

from tests.kit.terminal import terminal

__all__ = ["terminal"]
