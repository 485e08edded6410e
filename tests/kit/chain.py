"""Chain processes for tests: one per kind and session, restored to a snapshot after each test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from ledger.devchain import ChainKind, ChainProcess, DevelopmentAccount, start_chain
from ledger.devchain.anvil import find_anvil
from ledger.errors import AnvilMissing
from tests.kit.chain_controls import ChainControls

COMPILING = pytest.StashKey[subprocess.Popen[str]]()
"""`python -m ledger.build --check`, which takes a core a quarter of a minute, while other tests wait for processes."""

ROOT = Path(__file__).parents[2]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts compiling the contracts if a selected test compares them with the committed artifacts."""
    if any("compiling_again" in item.name for item in session.items) and not session.config.option.collectonly:
        session.config.stash[COMPILING] = subprocess.Popen(
            ["nice", "-n", "10", sys.executable, "-m", "ledger.build", "--check"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stops the compiler if no test waited for it."""
    compiling = config.stash.get(COMPILING, None)
    if compiling is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(compiling.pid, signal.SIGKILL)
        compiling.communicate()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChain:
    """A chain that a test has for itself: what it does is undone afterwards. Blocks are mined on arrival."""

    kind: ChainKind
    url: str
    chain_id: int
    accounts: tuple[DevelopmentAccount, ...]
    controls: ChainControls


def quickest_kind() -> ChainKind:
    """Returns anvil if it is installed: it takes a tenth of the embedded chain's CPU time."""
    try:
        find_anvil()
    except AnvilMissing:
        return ChainKind.EMBEDDED
    return ChainKind.ANVIL


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def embedded_process() -> AsyncIterator[ChainProcess]:
    """The session's embedded chain."""
    async with start_chain(ChainKind.EMBEDDED, accounts=20) as process:
        yield process


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def anvil_process() -> AsyncIterator[ChainProcess]:
    """The session's anvil; without the binary its tests are skipped, and pytest says so."""
    try:
        find_anvil()
    except AnvilMissing as missing:
        pytest.skip(f"{missing.detail}: {missing.hint}")
    async with start_chain(ChainKind.ANVIL, accounts=20) as process:
        yield process


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def development_process() -> AsyncIterator[ChainProcess]:
    """A chain for tests to which its kind does not matter."""
    async with start_chain(quickest_kind(), accounts=20) as process:
        yield process


@pytest.fixture
def anvil_url(anvil_process: ChainProcess) -> str:
    """Where anvil answers."""
    return anvil_process.url


@pytest.fixture(params=[ChainKind.EMBEDDED, pytest.param(ChainKind.ANVIL, marks=pytest.mark.needs_anvil)])
def chain_process(request: pytest.FixtureRequest) -> ChainProcess:
    """Each kind of chain in turn, shared by the session."""
    process = request.getfixturevalue(f"{request.param}_process")
    assert isinstance(process, ChainProcess)
    return process


@pytest.fixture
async def chain(chain_process: ChainProcess) -> AsyncIterator[LiveChain]:
    """Each kind of chain in turn; what the test does to it is undone."""
    async for live in _borrowed(chain_process):
        yield live


@pytest.fixture
async def embedded(embedded_process: ChainProcess) -> AsyncIterator[LiveChain]:
    """The embedded chain; what the test does to it is undone."""
    async for live in _borrowed(embedded_process):
        yield live


@pytest.fixture
async def development_chain(development_process: ChainProcess) -> AsyncIterator[LiveChain]:
    """The same for one test; what the test does to it is undone."""
    async for live in _borrowed(development_process):
        yield live


async def _borrowed(process: ChainProcess) -> AsyncIterator[LiveChain]:
    async with ChainControls(process.url) as controls:
        snapshot = await controls.snapshot()
        yield LiveChain(
            kind=process.kind,
            url=process.url,
            chain_id=process.chain_id,
            accounts=process.accounts,
            controls=controls,
        )
        await controls.revert(snapshot)
