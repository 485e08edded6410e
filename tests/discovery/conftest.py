"""Fixtures for the discovery tests."""

from tests.kit.discovery import open_place, place

__all__ = ["open_place", "place"]
