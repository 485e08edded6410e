"""Fixtures for the run tests."""

from tests.kit.runs import make_run, run

__all__ = ["make_run", "run"]
