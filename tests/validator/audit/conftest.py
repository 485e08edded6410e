"""Fixtures for the audit tests."""

from tests.kit.terminal import terminal

__all__ = ["terminal"]
