"""Processes of a mesh without a supervisor: whatever happens to one, all end in bounded time with a reason."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from ledger.devchain import free_port
from rollouts.recipe import write_recipe
from tests.kit.tiny_model import tiny_folder
from tests.kit.trained_pool import RECIPE, base_folder
from tests.trainer.mesh import scene

TIMEOUT_S, SHORT_TIMEOUT_S = 600.0, 5.0
LONGEST_S = 200.0
"""Less than the time-out of the mesh: closed connections end it earlier."""

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.trainer.mesh.scene"])  # modules that take seconds to import are imported once


@dataclass(frozen=True, slots=True)
class One:
    """A process of the mesh and the file with its error output."""

    process: ForkServerProcess
    errors: Path

    def ready(self) -> None:
        """Waits until the process waits for the end."""
        until = time.monotonic() + LONGEST_S
        while self.words() != "ready\n":
            assert time.monotonic() < until, self.words()
            assert self.process.is_alive(), self.words()
            time.sleep(0.05)

    def send(self, what: signal.Signals) -> None:
        """Sends a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, what)

    def said(self) -> tuple[int | None, str]:
        """Waits for the end; returns status and error text."""
        self.process.join(LONGEST_S)
        return self.process.exitcode, self.words().removeprefix("ready\n")

    def words(self) -> str:
        """Returns the error text so far."""
        return self.errors.read_text() if self.errors.exists() else ""


@contextmanager
def two(folder: Path, first: Path, second: Path, *, timeout_s: float = TIMEOUT_S) -> Iterator[tuple[One, One]]:
    """Runs process 0 and a follower, each with its base."""
    port = free_port()
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = []
    for rank, base in enumerate((first, second)):
        variables = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        errors = folder / f"errors-{rank}"
        process = PROCESSES.Process(target=scene.run, args=(base, timeout_s, variables, errors), daemon=True)
        process.start()
        started.append(One(process, errors))
    try:
        yield started[0], started[1]
    finally:
        for one in started:
            one.process.kill()
            one.process.join()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_folder(tmp_path_factory.mktemp("mesh") / "base")


@pytest.mark.parametrize(
    ("how", "timeout_s"),
    [(signal.SIGKILL, TIMEOUT_S), (signal.SIGSTOP, SHORT_TIMEOUT_S)],
    ids=["killed", "silent"],
)
def test_a_dead_or_silent_follower_ends_process_0_while_it_waits(
    base: Path, tmp_path: Path, how: signal.Signals, timeout_s: float
) -> None:
    with two(tmp_path, base, base, timeout_s=timeout_s) as (first, second):
        first.ready()
        second.send(how)
        status, words = first.said()
        assert status == 1
        assert "mesh-broken: another process of the mesh ended or can't be reached" in words


def test_a_follower_ends_when_process_0_has_died(base: Path, tmp_path: Path) -> None:
    with two(tmp_path, base, base) as (first, second):
        first.ready()
        first.send(signal.SIGKILL)
        status, words = second.said()
        assert status == 1
        assert "while waiting for process 0" in words


def test_sigterm_to_a_follower_ends_the_run_for_all_processes(base: Path, tmp_path: Path) -> None:
    with two(tmp_path, base, base) as (first, second):
        first.ready()
        second.send(signal.SIGTERM)
        assert first.said() == (0, "")
        assert second.said() == (0, "")


def test_a_different_base_is_refused_and_both_processes_report_it(base: Path, tmp_path: Path) -> None:
    other = tiny_folder(tmp_path / "other", kind="llama", seed=9, hidden_size=32, intermediate_size=64)
    write_recipe(other, RECIPE)
    with two(tmp_path, base, other) as (first, second):
        (one, words), (two_, own_words) = first.said(), second.said()
        assert (one, two_) == (1, 1)
        assert "1 of 2 processes could not execute 'terms'" in words
        assert "conflict: " in own_words
        assert "and process 0 has 0x" in own_words
