"""Fixture: the world of the histories, built once per chain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger.devchain import ChainProcess
from tests.kit.contract_chain import ledger_process
from tests.kit.contract_client import Chain
from tests.kit.contract_world import World
from tests.ledger.invariants.machine import prepare

__all__ = ["ledger_process"]


@pytest.fixture(scope="module")
def economy(ledger_process: ChainProcess) -> Iterator[World]:
    world = World(Chain(ledger_process.url))
    world.build()
    prepare(world)
    yield world
    world.chain.close()
