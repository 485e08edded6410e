"""The chain that a run needs."""

from __future__ import annotations

from tests.ledger.client.conftest import founded, world
from tests.ledger.conftest import development_chain, development_process

__all__ = ["development_chain", "development_process", "founded", "world"]
