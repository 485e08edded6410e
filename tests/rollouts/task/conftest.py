"""Fixtures for the task's tests."""

from tests.kit.rollout_task import around

__all__ = ["around"]
