"""The process runtime: runs tasks without Docker, in a bubblewrap sandbox.

Without an engine there are no images. The task's image is ignored, and its command runs with this machine's programs
and the worker's own Python and packages. The runtime is meant for trials without Docker. Use Docker for tasks of pool
owners whom you do not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from protocol.errors import Unavailable
from protocol.identifiers import Address
from protocol.runtime.threads import run_in_thread
from protocol.wire.nodes import RuntimeKind
from protocol.wire.tasks import NetworkMode, RegistryCredentials
from worker.runtime import keeper, sandbox
from worker.runtime.control_groups import find_control_groups, make_control_groups, remove_control_groups
from worker.runtime.interface import (
    Container,
    ContainerSpec,
    ContainerStatus,
    LaunchRefused,
    OutputLine,
    Progress,
    RuntimeDown,
    refuse_foreign,
)
from worker.runtime.process_output import OutputReader

WARNING = (
    "tasks run without Docker, in a sandbox with this machine's kernel and programs; the task's image is ignored, "
    "and a task that needs a network gets this machine's network, if [worker] allow_host_network is set"
)
"""Warning that is shown while this runtime is used."""

_POLL_SECONDS = 0.2
"""Interval in seconds at which new output is read."""
_OPEN_FILES = 65_536
"""Maximum number of open files of a task."""
_STOP_MARGIN = timedelta(seconds=5)
"""Time after the grace period that the keeper gets to end the task."""


class SandboxMissing(Unavailable):
    """bubblewrap is not installed, or this machine does not permit it."""

    code = "sandbox-missing"
    retryable = False
    default_hint = "install bubblewrap (Debian: apt install bubblewrap), or Docker"


class ProcessRuntime:
    """Runs the tasks of one worker as sandboxed processes.

    Args:
        node: This node's address.
        directory: Directory for the tasks' files, which only this worker uses.
        readable: Files and directories that tasks may read in addition to the system and the worker's Python.
        niceness: Number that is added to the worker's niceness for tasks.
        allow_host_network: Whether tasks that need a network may run. Without Docker, such tasks use the host's
            network.
        user: User and group id of tasks if the worker is root. By default it is derived from the node's address.
    """

    kind = RuntimeKind.PROCESS

    def __init__(
        self,
        node: Address,
        *,
        directory: Path,
        readable: Sequence[Path] = (),
        niceness: int = 0,
        allow_host_network: bool = False,
        user: int | None = None,
    ) -> None:
        self._node = node
        self._directory = directory
        self._niceness = niceness
        self._allow_host_network = allow_host_network
        self._as_root = os.geteuid() == 0
        self._user = (user if user is not None else task_user(node)) if self._as_root else None
        self._readable = sandbox.readable_paths(readable)

    @property
    def user(self) -> int | None:
        """User id of tasks; None if they run as the worker's own user."""
        return self._user

    async def check(self) -> str:
        """Creates a sandbox as a test; returns bubblewrap's version."""
        host = self._host()
        own = [] if self._as_root else ["--unshare-user", "--disable-userns"]
        command = [host.bubblewrap, "--ro-bind", "/", "/", "--unshare-pid", *own, "--proc", "/proc", "true"]
        tried = await run_in_thread(subprocess.run, command, capture_output=True, timeout=30, check=False)
        if tried.returncode != 0:
            raise SandboxMissing(
                f"bubblewrap can't create a sandbox here: {tried.stderr.decode(errors='replace').strip()[:300]}",
                hint="allow unprivileged user namespaces, or run the worker as root, or install Docker",
            )
        answer = await run_in_thread(
            subprocess.run, [host.bubblewrap, "--version"], capture_output=True, timeout=30, check=False
        )
        return answer.stdout.decode(errors="replace").strip()

    async def pull(self, image: str, *, credentials: RegistryCredentials | None, progress: Progress) -> None:
        """Reports that the image is not pulled.

        Tasks use this machine's own programs instead.
        """
        del credentials
        progress(f"{image} is not pulled: without a Docker engine, the task uses this machine's programs")

    async def start(self, spec: ContainerSpec) -> None:
        """Starts a keeper process, which starts the task in its sandbox."""
        refuse_foreign(spec.name, self._node)
        command = self._check(spec)
        program = Path(sandbox.__file__).with_name("enter.py")
        entrance = sandbox.arguments(spec, self._host(), enter=program)
        place = self._directory / spec.name
        try:
            place.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            raise LaunchRefused(f"a task with the name {spec.name} exists already", retryable=True) from None
        keeper.write_whole(place / "container.json", _labels(spec))
        groups = make_control_groups(spec.name, spec.resources)
        launch = self._launch(spec, command, entrance, groups)
        try:
            await run_in_thread(_spawn_keeper, place, launch)
        except OSError as error:
            await self.remove(spec.name)
            raise RuntimeDown(f"the task's keeper could not be started: {error}") from error

    async def containers(self) -> tuple[Container, ...]:
        """Returns all tasks that have a directory."""
        return await run_in_thread(self._list)

    async def stop(self, name: str, *, grace: timedelta) -> None:
        """Signals the keeper and waits for the task's end.

        The keeper applies the grace period that it got at the start of the task.
        """
        refuse_foreign(name, self._node)
        place = self._directory / name
        pid = _keeper_pid(place)
        if pid is None:
            return
        _signal(pid, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + (grace + _STOP_MARGIN).total_seconds()
        while _keeper_pid(place) is not None:
            if asyncio.get_running_loop().time() > deadline:
                _signal(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL_SECONDS / 4)

    async def remove(self, name: str) -> None:
        """Kills the keeper, and with it the sandbox; deletes the task's files."""
        refuse_foreign(name, self._node)
        place = self._directory / name
        while (pid := _keeper_pid(place)) is not None:
            _signal(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL_SECONDS / 4)
        _end_orphan(place)
        await run_in_thread(shutil.rmtree, place, ignore_errors=True)
        for _ in range(20):  # ended processes leave their control groups with a delay
            groups = find_control_groups(name)
            if not groups:
                break
            remove_control_groups(groups)
            await asyncio.sleep(_POLL_SECONDS / 4)

    async def remove_unused_images(self, *, named: Collection[str], unused_for: timedelta) -> tuple[str, ...]:
        """Does nothing, because this runtime has no images."""
        del named, unused_for
        return ()

    async def remove_network(self) -> None:
        """Does nothing: the sandbox has no network of its own."""

    async def output(self, name: str, *, after_ns: int) -> AsyncIterator[OutputLine]:
        """Yields lines from the keeper's output files until the task has ended."""
        refuse_foreign(name, self._node)
        place = self._directory / name
        reader = OutputReader(place, after_ns)
        while True:
            ended = (place / "exit.json").exists() or _keeper_pid(place) is None
            while lines := await run_in_thread(reader.read):
                for line in lines:
                    yield line
            if ended:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Does nothing, because this runtime has no connection."""

    def _host(self) -> sandbox.Host:
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxMissing("bubblewrap (bwrap) is not installed on this machine")
        return sandbox.Host(bubblewrap=program, readable=self._readable, as_root=self._as_root)

    def _check(self, spec: ContainerSpec) -> list[str]:
        command = [*(spec.entrypoint or ()), *spec.command]
        if not command:
            raise LaunchRefused(
                "the task has neither entrypoint nor command, and without Docker there is no image to take one from",
                hint="give the task a command",
            )
        if spec.network is not NetworkMode.NONE and not self._allow_host_network:
            raise LaunchRefused(
                f"the task needs a network ({spec.network}); without Docker it would be this machine's network, "
                "which this contributor does not allow",
                hint="ask the contributor to install Docker or to set allow_host_network in [worker], or set the "
                "task's network to none",
                code="host-network-refused",
            )
        return command

    def _launch(
        self, spec: ContainerSpec, command: list[str], entrance: list[str], groups: tuple[Path, ...]
    ) -> dict[str, Any]:
        path = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": "/tmp", "LANG": "C.UTF-8", **spec.environment}  # noqa: S108
        if spec.gpu_uuids:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpu_uuids)
        limits = {"RLIMIT_NOFILE": _OPEN_FILES, "RLIMIT_CORE": 0}
        # RLIMIT_NPROC counts all processes of a user. The task has its own user only if the worker is root.
        if self._as_root:
            limits["RLIMIT_NPROC"] = spec.resources.pids
        return {
            "sandbox": entrance,
            "enter": {
                "uid": self._user,
                "gid": self._user,
                "limits": limits,
                "command": command,
                "environment": environment,
            },
            "niceness": self._niceness,
            "cgroups": [str(group) for group in groups],
            "memory_watch_bytes": None if groups else spec.resources.memory_bytes,
            "grace_seconds": spec.stop_grace.total_seconds(),
        }

    def _list(self) -> tuple[Container, ...]:
        if not self._directory.is_dir():
            return ()
        found = [_observe(place) for place in sorted(self._directory.iterdir())]
        return tuple(container for container in found if container is not None)


def task_user(node: Address) -> int:
    """Returns a user id for this node's tasks.

    The id is far above the ids of regular users and services.
    """
    return 1_000_000_000 + int(node[2:10], 16) % 1_000_000_000


def _labels(spec: ContainerSpec) -> dict[str, Any]:
    return {
        "assignment_id": spec.assignment_id,
        "fingerprint": spec.fingerprint,
        "restart_nonce": spec.restart_nonce,
        "stop_grace_ms": int(spec.stop_grace.total_seconds() * 1000),
    }


def _spawn_keeper(place: Path, launch: dict[str, Any]) -> None:
    """Starts the keeper; waits up to 10 s until it runs.

    The keeper has its own session, so that it outlives the worker.
    """
    with (place / "keeper.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            cwd="/",
            start_new_session=True,
        )
    if process.stdin is not None:
        process.stdin.write(json.dumps(launch).encode())
        process.stdin.close()
    deadline = time.monotonic() + 10
    while not (place / "keeper.json").exists() and process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)


def _observe(place: Path) -> Container | None:
    written = _json(place / "container.json")
    if written is None:
        return None
    ended = _json(place / "exit.json")
    known = _json(place / "keeper.json")
    running = _json(place / "running.json")
    alive = _keeper_pid(place) is not None
    if not alive:
        _end_orphan(place)
    status = ContainerStatus.RUNNING if alive and ended is None else ContainerStatus.EXITED
    if known is None:
        status = ContainerStatus.CREATED
    if status is ContainerStatus.EXITED and ended is None:
        ended = _json(place / "exit.json") or {
            "exit_code": 137,
            "out_of_memory": False,
        }  # the keeper was killed: 137 is 128 + SIGKILL
    return Container(
        name=place.name,
        assignment_id=str(written["assignment_id"]),
        fingerprint=str(written["fingerprint"]),
        restart_nonce=int(written["restart_nonce"]),
        stop_grace=timedelta(milliseconds=int(written["stop_grace_ms"])),
        status=status,
        exit_code=int(ended["exit_code"]) if ended is not None else None,
        out_of_memory=bool(ended["out_of_memory"]) if ended is not None else False,
        started_at=datetime.fromtimestamp(running["started_ns"] / 1e9, UTC) if running is not None else None,
    )


def _keeper_pid(place: Path) -> int | None:
    """Returns the keeper's process id; None if the keeper has ended."""
    known = _json(place / "keeper.json")
    if known is None:
        return None
    pid = int(known["pid"])
    ticks = keeper.start_ticks(pid)
    return pid if ticks is not None and ticks == known["start_ticks"] else None


def _end_orphan(place: Path) -> None:
    """Kills a sandbox whose keeper was killed too early to take the sandbox with it.

    This happens while bubblewrap sets up, before `--die-with-parent` takes effect.
    """
    running = _json(place / "running.json")
    if running is not None and running["first_pid"]:
        ticks = keeper.start_ticks(running["first_pid"])
        if ticks is not None and ticks == running["start_ticks"]:
            _signal(running["first_pid"], signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
