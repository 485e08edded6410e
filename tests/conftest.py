"""Fixtures for all tests: a real Redis, started and stopped here."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import redis as sync_redis
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis

from cli.devnet.redis import find_redis
from protocol.errors import NotFound
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock

pytest.register_assert_rewrite("tests.kit")

# The duration of an example depends on the load of the machine, not on the code. Examples differ from run to run, so
# a few of them per run find what many would; `MUSTER_EXAMPLES=1000 make test ARGS=…` tries more.
settings.register_profile(
    "patient",
    max_examples=int(os.environ.get("MUSTER_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")


def _required(part: str) -> bool:
    return part in os.environ.get("MUSTER_REQUIRE", "").replace(",", " ").split()


@pytest.fixture(scope="session", autouse=True)
def _no_configuration_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps services started by tests from reading `muster.toml` of a developer or of a devnet in this checkout."""
    empty = tmp_path_factory.mktemp("configuration") / "muster.toml"
    empty.touch()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MUSTER_CONFIG", str(empty))
        yield


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Runs a redis-server for this session on a unix socket, without persistence; yields its URL."""
    try:
        binary = str(find_redis())
    except NotFound as missing:
        pytest.skip(f"{missing.detail}: {missing.hint}")
    home = tmp_path_factory.mktemp("redis")
    path = home / "s"  # a unix socket's path has at most 107 characters
    command = [binary, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(home)]
    with (home / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait_for(path, process, home / "log")
            yield f"unix://{path}"
        finally:
            process.terminate()


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """Returns the URL of the same server, emptied before the test."""
    with sync_redis.from_url(redis_server) as client:
        client.flushall()
    return redis_server


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """Returns a client of the emptied server."""
    client = connect_redis(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def clock() -> ManualClock:
    """Returns a clock that advances only when the test turns it."""
    return ManualClock()


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until and process.poll() is None:
        try:
            with sync_redis.from_url(f"unix://{path}") as client:
                client.ping()
        except sync_redis.ConnectionError:
            time.sleep(0.02)
        else:
            return
    pytest.fail(f"redis-server did not start: {log.read_text()[-2000:]}")


def pytest_configure(config: pytest.Config) -> None:
    """Makes processes started by tests receive Ctrl-C, which a shell's background jobs ignore and pass on as ignored.

    Processes of pytest-xdist take files in the order below, instead of those with the most tests first.
    """
    config.option.loadscopereorder = False
    # Without bytecode on disk, each of hundreds of processes would compile this code again.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_LONGEST_FIRST = (
    "e2e/test_loop.py",
    "ledger/invariants/test_economy.py",
    "trainer/distributed/test_run.py",
    "worker/test_daemon.py",
    "rollouts/engines/test_vllm.py",
    "e2e/test_financial_life.py",
    "attacks/test_whole_service.py",
    "e2e/test_stranger.py",
    "e2e/test_devnet.py",
    "orchestrator/test_process.py",
    "trainer/run/test_kill.py",
    "trainer/run/test_survival.py",
    "ledger/test_artifacts.py",
    "trainer/learning/test_sharding.py",
    "validator/service/test_judging.py",
    "cli/test_pool_commands.py",
    "discovery/test_process.py",
)
"""Slow files with few tests: if one of them came last, the other processes would be idle."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Reads a file under `-m alone` only if some of its tests may be `alone`, because importing all files is slow."""
    if config.option.markexpr != "alone" or not collection_path.match("test_*.py"):
        return None
    return None if _speaks_of_docker(collection_path) else True


def pytest_collection_finish() -> None:
    """Excludes imported modules and collected tests from garbage collection: each full collection reads them again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that use Redis, so that `-m 'not needs_redis'` leaves them out, and tests that need Docker as
    `alone`.
    """
    items.sort(key=lambda item: _LONGEST_FIRST.index(place) if (place := _place(item)) in _LONGEST_FIRST else 99)
    for item in items:
        if _place(item) in _LONGEST_FIRST and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))
        if item.get_closest_marker("needs_docker"):
            if not _speaks_of_docker(item.path):
                raise pytest.UsageError(f"{item.nodeid} would never run: its file does not say that it needs Docker")
            item.add_marker(pytest.mark.alone)
        names = getattr(item, "fixturenames", ())
        if "redis_server" in names:
            item.add_marker(pytest.mark.needs_redis)
        if "anvil_process" in names:
            item.add_marker(pytest.mark.needs_anvil)


def _speaks_of_docker(path: Path) -> bool:
    return "docker" in path.read_text()


def _place(item: pytest.Item) -> str:
    home = Path(__file__).parent
    return item.path.relative_to(home).as_posix() if item.path.is_relative_to(home) else ""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names cases with keys the same in all processes, although each process generates new keys."""
    return "0x" if isinstance(val, str) and val.startswith("0x") and len(val) >= 42 else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip into a failure if `MUSTER_REQUIRE` names the missing tool (redis, anvil, solc, docker, ...)."""
    report = yield
    missing = [mark.name for mark in item.iter_markers() if _required(mark.name.removeprefix("needs_"))]
    if report.skipped and missing and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped although MUSTER_REQUIRE says that it must run: {', '.join(missing)}; {report.longrepr}"
        )
    return report
