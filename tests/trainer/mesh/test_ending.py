"""Processes of a mesh that nobody watches over: whatever happens to one, all end in bounded time, with words."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollouts.recipe import write_recipe
from tests.rollouts.tiny import tiny_folder
from tests.trainer.run.world import RECIPE, base_folder

TIMEOUT_S, SHORT_TIMEOUT_S = 600.0, 5.0
LONGEST_S = 150.0
"""Less than the time limit of the mesh: connections that closed end it before."""

Mesh = tuple[subprocess.Popen[str], subprocess.Popen[str]]


@contextmanager
def two(first: Path, second: Path, *, timeout_s: float = TIMEOUT_S) -> Iterator[Mesh]:
    """Process 0 and a follower, each with its base."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.mesh.scene", str(base), str(timeout_s)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, base in enumerate((first, second))
    ]
    try:
        yield started[0], started[1]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Status and last words."""
    _, errors = process.communicate(timeout=LONGEST_S)
    return process.returncode, errors


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_folder(tmp_path_factory.mktemp("mesh") / "base")


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"


@pytest.mark.parametrize(
    ("how", "timeout_s"),
    [(signal.SIGKILL, TIMEOUT_S), (signal.SIGSTOP, SHORT_TIMEOUT_S)],
    ids=["killed", "silent"],
)
def test_a_follower_that_is_gone_or_silent_ends_process_0_while_it_waits(
    base: Path, how: signal.Signals, timeout_s: float
) -> None:
    with two(base, base, timeout_s=timeout_s) as (first, second):
        ready(first)
        second.send_signal(how)
        status, words = said(first)
        assert status == 1
        assert "mesh-broken: another process of the mesh ended or can't be reached" in words


def test_a_follower_whose_process_0_is_gone_ends(base: Path) -> None:
    with two(base, base) as (first, second):
        ready(first)
        first.kill()
        status, words = said(second)
        assert status == 1
        assert "while waiting for process 0" in words


def test_a_follower_that_is_told_to_end_ends_the_run_for_all(base: Path) -> None:
    with two(base, base) as (first, second):
        ready(first)
        second.send_signal(signal.SIGTERM)
        assert said(first) == (0, "")
        assert said(second) == (0, "")


def test_another_base_is_refused_and_both_say_so(base: Path, tmp_path: Path) -> None:
    other = tiny_folder(tmp_path / "other", kind="llama", seed=9, hidden_size=32, intermediate_size=64)
    write_recipe(other, RECIPE)
    with two(base, other) as (first, second):
        (one, words), (two_, own_words) = said(first), said(second)
        assert (one, two_) == (1, 1)
        assert "1 of 2 processes could not do 'terms'" in words
        assert "conflict: " in own_words
        assert "and process 0 has 0x" in own_words
