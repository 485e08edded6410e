"""Runs `muster` commands and devnets in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.configuration.sections import load_configuration
from cli.main import main
from protocol.identifiers import address
from tests.kit.chain_controls import ChainControls


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Devnet:
    """A running devnet and its folder."""

    process: subprocess.Popen[str]
    directory: Path

    def muster(self, *arguments: str, expect: int = 0) -> Said:
        """Runs `muster` with the devnet's configuration, in this process."""
        said = run_muster("--config", str(self.directory / "muster.toml"), *arguments)
        assert said.code == expect, f"muster {' '.join(arguments)} ended with {said.code}\n{said.out}{said.err}"
        return said

    def warp(self, by: timedelta) -> None:
        """Turns the chain's time forward."""
        self._control(lambda controls: controls.warp(by))
        self._control(lambda controls: controls.mine())

    def give_coin(self, to: str) -> None:
        """What a faucet does on a test network: the chain's coin for gas."""
        self._control(lambda controls: controls.set_balance(address(to), 10**18))

    def _control(self, act: Callable[[ChainControls], Awaitable[None]]) -> None:
        async def controlled() -> None:
            async with ChainControls(load_configuration(self.directory / "muster.toml").chain.endpoint) as controls:
                await act(controls)

        asyncio.run(controlled())


def run_muster(*arguments: str) -> Said:
    """Runs `muster` in this process, from the command line to the exit code."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["muster", *arguments]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.argv = before
    return Said(code, out.getvalue(), err.getvalue())


def start_devnet(directory: Path, *options: str) -> subprocess.Popen[str]:
    """Starts a devnet and returns when it says that it is ready."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cli",
            "devnet",
            "--plain",
            "--block-time",
            "0.1",
            "--directory",
            str(directory),
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "ready:" in line:
            return process
    process.wait()
    raise AssertionError("the devnet did not become ready:\n" + "".join(said))


def stop_devnet(process: subprocess.Popen[str], with_signal: int = signal.SIGINT) -> int:
    """Stops a devnet as Ctrl-C does, and returns its exit code."""
    if process.poll() is None:
        process.send_signal(with_signal)
    assert process.stdout is not None
    process.stdout.read()
    process.stdout.close()
    return process.wait(timeout=60)


@pytest.fixture(scope="module")
def devnet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    """One devnet for the tests of a module."""
    directory = tmp_path_factory.mktemp("devnet") / "net"
    process = start_devnet(directory, "--ledger-only")
    try:
        yield Devnet(process, directory)
    finally:
        stop_devnet(process)


def wait_until(condition: Any, within: float = 90.0) -> None:
    """Waits for something that another process does."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
