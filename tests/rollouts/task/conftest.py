"""Fixtures of this folder's tests."""

from tests.kit.rollout_task import around

__all__ = ["around"]
