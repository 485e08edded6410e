"""A pool on a real chain, with somebody for every role; each test's changes are undone."""

from __future__ import annotations

from tests.ledger.client.conftest import founded, world
from tests.ledger.conftest import embedded, embedded_process

__all__ = ["embedded", "embedded_process", "founded", "world"]
