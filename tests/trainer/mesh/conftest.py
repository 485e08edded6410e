"""The chain that a run needs."""

from __future__ import annotations

from tests.ledger.client.conftest import founded, world
from tests.ledger.conftest import embedded, embedded_process

__all__ = ["embedded", "embedded_process", "founded", "world"]
