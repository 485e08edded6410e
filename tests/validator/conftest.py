"""Fixtures of this folder's tests."""

from tests.kit.validators import pool

__all__ = ["pool"]
