"""One contract deployment per chain and session; each test restores the chain's snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from ledger.devchain import ChainKind, ChainProcess, start_chain
from ledger.devchain.anvil import find_anvil
from ledger.errors import AnvilMissing
from tests.kit.chain import quickest_kind
from tests.kit.contract_client import Chain
from tests.kit.contract_world import World


@pytest_asyncio.fixture(
    scope="session",
    loop_scope="session",
    params=[ChainKind.EMBEDDED, pytest.param(ChainKind.ANVIL, marks=pytest.mark.needs_anvil)],
)
async def ledger_process(request: pytest.FixtureRequest) -> AsyncIterator[ChainProcess]:
    """A chain of each kind in turn, for the contracts alone."""
    if request.param is ChainKind.ANVIL:
        try:
            find_anvil()
        except AnvilMissing as missing:
            pytest.skip(f"{missing.detail}: {missing.hint}")
    async with start_chain(request.param) as process:
        yield process


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def contracts_process() -> AsyncIterator[ChainProcess]:
    """Starts one chain for all contract tests; `tests/ledger/invariants` compares the two kinds of chain."""
    async with start_chain(quickest_kind()) as process:
        yield process


@pytest.fixture(scope="session")
def shared_world(contracts_process: ChainProcess) -> Iterator[World]:
    chain = Chain(contracts_process.url)
    world = World(chain)
    world.build()
    yield world
    chain.close()


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    with shared_world.chain.restored():
        yield shared_world
