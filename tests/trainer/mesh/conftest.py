"""Fixture: the chain that a run needs."""

from __future__ import annotations

from tests.kit.chain import development_chain, development_process
from tests.kit.world import founded, world

__all__ = ["development_chain", "development_process", "founded", "world"]
