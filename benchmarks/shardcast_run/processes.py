"""Measured processes: CPU time and memory including children; they end with this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_S = 0.2
TICK = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parents[2]

STILL = {"OMP_NUM_THREADS": "1", "MUSTER_LOG": "WARNING"}


@dataclass(slots=True)
class Cost:
    """CPU time and memory that a process and its children have used."""

    cpu_s: float = 0.0
    largest: int = 0
    """Peak memory of the largest process, in bytes."""


class Measured:
    """A running process.

    Args:
        name: Name in tables and messages.
        command: The command; lines of JSON on its standard output are read, other lines are ignored.
        folder: The folder for its log.
        cwd: Its working directory.
    """

    def __init__(self, name: str, command: Sequence[str], *, folder: Path, cwd: Path = ROOT) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.cost = Cost()
        self._said: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._used: dict[int, float] = {}
        self._before = 0.0
        self._errors = self.log.open("wb")
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=cwd,
            env=os.environ | STILL,
        )
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._sample, daemon=True).start()

    def wait_for(self, what: str, *, patience: float = 300.0) -> dict[str, Any]:
        """Waits for the first line of JSON with this key."""
        until = time.monotonic() + patience
        with self._news:
            while True:
                for line in self._said:
                    if what in line:
                        return line
                if self._process.poll() is not None and not self._news.wait(0.5):
                    raise RuntimeError(f"{self.name} ended without {what}: {self.log.read_text()[-2000:]}")
                if time.monotonic() > until:
                    raise TimeoutError(f"{self.name} said no {what}: {self.log.read_text()[-2000:]}")
                self._news.wait(0.2)

    def tell(self, line: str) -> None:
        """Writes a line to the standard input of the process."""
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(line.encode() + b"\n")
            stdin.flush()

    def said(self, what: str) -> list[dict[str, Any]]:
        """Returns every line of JSON so far with this key."""
        with self._news:
            return [line for line in self._said if what in line]

    def kill(self) -> None:
        """Kills the process at once, without any clean-up, as a power cut does."""
        self.look()
        self._process.kill()
        self._process.wait()

    def forget_start(self) -> None:
        """Restarts the count of CPU time, so that importing modules is not counted."""
        self.look()
        self._before, self.cost.cpu_s = sum(self._used.values()), 0.0

    def stop(self) -> None:
        """Ends the process and its children."""
        self.look()
        family = _family(self._process.pid)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
            until = time.monotonic() + 5
            while time.monotonic() < until and (self._process.poll() is None or any(map(_lives, family))):
                time.sleep(0.02)
        self._process.wait()
        self._errors.close()

    def _listen(self) -> None:
        stdout = self._process.stdout
        for line in stdout or ():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                with self._news:
                    self._said.append(value)
                    self._news.notify_all()

    def _sample(self) -> None:
        while self._process.poll() is None:
            self.look()
            time.sleep(SAMPLE_S)

    def look(self) -> None:
        """Updates `cost`."""
        now = [each for pid in _family(self._process.pid) if (each := _usage(pid)) is not None]
        for each in now:
            self._used[each.pid] = max(self._used.get(each.pid, 0.0), each.cpu_s)
            self.cost.largest = max(self.cost.largest, each.peak)
        self.cost.cpu_s = sum(self._used.values()) - self._before


@dataclass(frozen=True, slots=True)
class _Usage:
    pid: int
    cpu_s: float
    peak: int


def _family(pid: int) -> list[int]:
    """Returns the process and its living descendants."""
    found = [pid]
    for each in found:
        with suppress(OSError):  # the process may end while it is inspected
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                with suppress(OSError):
                    found += map(int, task.read_text().split())
    return found


def _usage(pid: int) -> _Usage | None:
    """Reads usage from /proc, because the peak that `wait` returns includes the process forked from."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return _Usage(pid, sum(map(int, times)) / TICK, peak * 1024)


def _lives(pid: int) -> bool:
    usage = _usage(pid)
    return usage is not None and usage.peak > 0  # a zombie has no memory


@contextmanager
def all_stopped(started: list[Measured]) -> Iterator[None]:
    """Stops all processes in the list at the end, in reverse order."""
    try:
        yield
    finally:
        for each in reversed(started):
            each.stop()


def role(module: str, *arguments: object) -> list[str]:
    """Returns the command of a role."""
    return [sys.executable, "-m", f"benchmarks.shardcast_run.{module}", *map(str, arguments)]


def say(**what: object) -> None:
    """Prints one line for the measuring process."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
