"""Starts processes, restarts those that end, and stops all in reverse order of starting.

`await supervisor.start(...)` returns when the process is healthy, so that the caller's next line may rely on the
process. Every process leads its own session, so that Ctrl-C in the terminal reaches the supervisor alone. Every process
has the network's id in its environment, by which `orphan_reaper` finds the process and all its descendants.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from pathlib import Path

from cli.devnet.orphan_reaper import NETWORK_ID, end_network
from protocol.errors import MusterError
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.waiting import cancel_all

Gate = Callable[[], Awaitable[bool]]
"""Function that returns True if a process is ready; an exception counts as not ready."""

_GATE_POLL = timedelta(milliseconds=50)


class ProcessFailed(MusterError):
    """A process of the network ended or never became healthy."""

    code = "process-failed"


class ProcessState(StrEnum):
    """Lifecycle state of a process."""

    STARTING = "starting"
    HEALTHY = "healthy"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Maximum number of consecutive restarts of a process, and the pause before each.

    The pause doubles from `first` to `longest`. The count starts again once a process has run for `reset_after`.
    """

    attempts: int = 5
    first: timedelta = timedelta(milliseconds=500)
    longest: timedelta = timedelta(seconds=15)
    reset_after: timedelta = timedelta(seconds=60)

    def wait(self, restarts: int) -> timedelta:
        """Returns the pause before restart number `restarts`, counted from 1."""
        return backoff(self.first, self.longest, restarts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process of the network.

    Args:
        name: Unique in the network; names the log file.
        command: Program and arguments; secrets belong in `environment` or in files.
        environment: Variables in addition to the supervisor's own.
        gate: Checks whether the process is ready; None: the process is ready as soon as it runs.
        ready_within: Time within which `gate` must report that the process is ready. The default is long, because many
            processes of a network start at once, and a machine with few cores may also do other work.
        restart: Restart policy for a process that ends by itself.
        grace: Time between SIGTERM and SIGKILL.
        ends: Whether the process ends by itself when its work is done; after exit code 0 it is not restarted.
        kind: Kind of process. Processes of one kind do not depend on each other, so the supervisor stops them at the
            same time if they were started one after the other.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    gate: Gate | None = None
    ready_within: timedelta = timedelta(seconds=120)
    restart: RestartPolicy = RestartPolicy()
    grace: timedelta = timedelta(seconds=5)
    ends: bool = False
    kind: str = ""


class SupervisedProcess:
    """A supervised process with its state; `Supervisor.start` returns it."""

    def __init__(self, spec: ProcessSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.state = ProcessState.STARTING
        self.restarts = 0
        self.started_at: datetime | None = None
        self.exit_code: int | None = None
        self.handle: asyncio.subprocess.Process | None = None
        self.watcher: asyncio.Task[None] | None = None
        self.done = asyncio.Event()
        """Set when a process with `ends` has ended with exit code 0."""

    @property
    def name(self) -> str:
        """The name in the spec."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """Process id; None if the process does not run."""
        return self.handle.pid if self.handle is not None and self.handle.returncode is None else None

    def log_tail(self, lines: int = 20) -> str:
        """Returns the last lines of the process's log; reads at most 64 KiB."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - 65536))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])


class Supervisor:
    """Owns the processes of one network.

    Use as an async context manager: leaving it stops everything, in reverse order of starting.

    Args:
        directory: Parent of `logs/`.
        network_id: Id of the network; the supervisor puts it into the environment of every process.
        clock: Source of time for back-off and gates.
        on_event: Called with one line per event.
    """

    def __init__(
        self,
        directory: Path,
        *,
        network_id: str,
        clock: Clock | None = None,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._logs = directory / "logs"
        self._network_id = network_id
        self._clock = clock or SystemClock()
        self.on_event = on_event
        self._processes: dict[str, SupervisedProcess] = {}
        self._stopping = False
        self._failure: asyncio.Future[MusterError] | None = None

    async def __aenter__(self) -> Supervisor:
        self._logs.mkdir(parents=True, exist_ok=True)
        self._failure = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def processes(self) -> list[SupervisedProcess]:
        """All processes, in order of starting."""
        return list(self._processes.values())

    async def start(self, spec: ProcessSpec) -> SupervisedProcess:
        """Starts a process and returns when its gate reports that the process is ready.

        Raises:
            ProcessFailed: The process ended, or was not ready in time; the message quotes the end of the process's log.
        """
        if spec.name in self._processes:
            raise ProcessFailed(f"there is a process called {spec.name} already", hint="give each process its own name")
        process = SupervisedProcess(spec, self._logs / f"{spec.name}.log")
        self._processes[spec.name] = process
        await self._spawn(process)
        await self._wait_ready(process)
        process.watcher = asyncio.create_task(self._watch(process), name=f"watch {spec.name}")
        return process

    async def complete(self, spec: ProcessSpec) -> None:
        """Runs a process to its end.

        Raises:
            ProcessFailed: The exit code is not 0; the message quotes the end of the process's log.
        """
        process = SupervisedProcess(spec, self._logs / f"{spec.name}.log")
        await self._spawn(process)
        try:
            if process.handle is None or await process.handle.wait() != 0:
                raise self._failed(process, "failed")
        finally:
            if process.handle is not None:
                _kill_group(process.handle.pid)

    async def failure(self) -> MusterError:
        """Waits until a process has ended and has no restarts left, and returns the error."""
        if self._failure is None:
            raise RuntimeError("the supervisor is not running")
        return await asyncio.shield(self._failure)

    async def stop(self) -> None:
        """Stops all processes; safe to call twice.

        A process gets SIGTERM. After at most `grace`, its whole process group gets SIGKILL.
        """
        self._stopping = True
        together = groupby(reversed(self.processes), key=lambda process: process.spec.kind or process.name)
        for processes in [list(each) for _, each in together]:
            watchers = [process.watcher for process in processes if process.watcher is not None]
            await cancel_all(watchers)
            await asyncio.gather(*[self._end(process) for process in processes])
        await asyncio.to_thread(end_network, self._network_id)  # ends descendants that have sessions of their own, too

    async def _spawn(self, process: SupervisedProcess) -> None:
        spec = process.spec
        environment = {**os.environ, **spec.environment, NETWORK_ID: self._network_id, "PYTHONUNBUFFERED": "1"}
        try:
            with process.log_path.open("ab") as log:
                process.handle = await asyncio.create_subprocess_exec(
                    *spec.command,
                    env=environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            process.state = ProcessState.FAILED
            raise ProcessFailed(
                f"{spec.name} could not be started: {error}", hint=f"check that {spec.command[0]} is installed"
            ) from error
        process.started_at = self._clock.now()
        process.exit_code = None
        self.on_event(f"{spec.name} started")

    async def _wait_ready(self, process: SupervisedProcess) -> None:
        spec = process.spec
        deadline = self._clock.monotonic() + spec.ready_within.total_seconds()
        while True:
            if process.handle is None or process.handle.returncode is not None:
                process.state = ProcessState.FAILED
                raise self._failed(process, "ended before it was ready")
            if spec.gate is None or await _open(spec.gate):
                break
            if self._clock.monotonic() > deadline:
                process.state = ProcessState.FAILED
                raise self._failed(process, f"was not ready within {spec.ready_within.total_seconds():.0f} s")
            await self._clock.sleep(_GATE_POLL)
        process.state = ProcessState.HEALTHY
        self.on_event(f"{spec.name} is ready")

    def _failed(self, process: SupervisedProcess, what: str) -> ProcessFailed:
        code = process.handle.returncode if process.handle is not None else None
        ending = f" (exit code {code})" if code is not None else ""
        return ProcessFailed(
            f"{process.name} {what}{ending}\n{process.log_tail()}".rstrip(),
            hint=f"its whole log is {process.log_path}",
        )

    async def _watch(self, process: SupervisedProcess) -> None:
        """Restarts the process whenever it ends, until it is done or has no restarts left."""
        policy = process.spec.restart
        consecutive = 0
        while process.handle is not None:
            process.exit_code = await process.handle.wait()
            _kill_group(process.handle.pid)  # descendants of the ended process must not disturb the restarted one
            if self._stopping:
                return
            if process.spec.ends and process.exit_code == 0:
                process.state = ProcessState.DONE
                process.done.set()
                self.on_event(f"{process.name} is done")
                return
            up = self._clock.now() - (process.started_at or self._clock.now())
            consecutive = 1 if up >= policy.reset_after else consecutive + 1
            if consecutive > policy.attempts:
                process.state = ProcessState.FAILED
                error = self._failed(process, "ended")
                self.on_event(f"{process.name} ended (exit code {process.exit_code}) and is not started again")
                if self._failure is not None and not self._failure.done():
                    self._failure.set_result(error)
                return
            process.state = ProcessState.RESTARTING
            process.restarts += 1
            self.on_event(f"{process.name} ended (exit code {process.exit_code}); restart {process.restarts}")
            await self._clock.sleep(policy.wait(consecutive))
            try:
                await self._spawn(process)
                await self._wait_ready(process)
            except ProcessFailed as error:
                self.on_event(error.detail.splitlines()[0])
                await self._end(process)

    async def _end(self, process: SupervisedProcess) -> None:
        handle = process.handle
        if handle is None:
            return
        if handle.returncode is None:
            process.state = ProcessState.STOPPING
            handle.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(handle.wait(), process.spec.grace.total_seconds())
            except TimeoutError:
                self.on_event(f"{process.name} did not stop in {process.spec.grace.total_seconds():.0f} s: killed")
        _kill_group(handle.pid)
        process.exit_code = await handle.wait()
        if process.state is ProcessState.DONE:
            return
        process.state = ProcessState.STOPPED
        if self._stopping:
            self.on_event(f"{process.name} stopped")


async def _open(gate: Gate) -> bool:
    try:
        return await asyncio.wait_for(gate(), 5)
    except Exception:  # noqa: BLE001 - any error of a gate means "not ready"; the deadline bounds the wait
        return False


def _kill_group(pid: int) -> None:
    """Kills the remaining processes of the group that a process led."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
