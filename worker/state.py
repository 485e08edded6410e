"""The worker's state directory: persistent state, locked so that only one worker uses it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protocol.errors import Conflict, Unavailable
from protocol.identifiers import Address
from protocol.runtime.files import FileLocked, locked_file, write_atomically
from protocol.runtime.randomness import token_hex

MOST_FILE_BYTES = 1 << 20


class StateInUse(Conflict):
    """Another worker uses this directory."""

    code = "state-in-use"


class TaskDiskFull(Unavailable):
    """The disk has too little free space for a task."""

    code = "no-room"


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """Paths of one worker's files. The directory is readable by the worker's user only (mode 0700)."""

    root: Path

    @property
    def tasks(self) -> Path:
        """Task volumes, one directory per task."""
        return self.root / "tasks"

    @property
    def shared(self) -> Path:
        """The volume shared by successive tasks."""
        return self.root / "shared"

    @property
    def processes(self) -> Path:
        """Files of the process runtime."""
        return self.root / "processes"

    @property
    def logs(self) -> Path:
        """Task output, one directory per assignment."""
        return self.root / "logs"

    @property
    def bridges(self) -> Path:
        """Bridge sockets, one directory per assignment."""
        return self.root / "bridges"

    @property
    def spool(self) -> Path:
        """Copies of files that wait for delivery."""
        return self.root / "spool"

    @property
    def queue(self) -> Path:
        """The queue's database."""
        return self.root / "queue.sqlite"

    @property
    def control_socket(self) -> Path:
        """Unix socket of the daemon's control API."""
        return self.root / "control.sock"

    def prepare(self) -> None:
        """Creates the directories."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root.chmod(0o700)
        for place in (self.tasks, self.processes, self.logs, self.bridges, self.spool):
            place.mkdir(exist_ok=True, mode=0o700)
        make_volume(self.shared)

    def fingerprint_secret(self) -> bytes:
        """Returns the HMAC key of container fingerprints, created at first use.

        Fingerprints cover the task's secrets and are stored in readable container labels. Without a key, others could
        guess a secret and check the guess.
        """
        path = self.root / "fingerprint.secret"
        if not path.exists():
            write_atomically(path, secrets.token_bytes(32))
        return path.read_bytes()

    def read(self, name: str) -> dict[str, Any] | None:
        """Returns the JSON object written under this name; None if it is missing or damaged."""
        try:
            with (self.root / f"{name}.json").open("rb") as file:
                content = json.loads(file.read(MOST_FILE_BYTES))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON object atomically and syncs it to disk."""
        write_atomically(self.root / f"{name}.json", json.dumps(dict(content)).encode())

    def forget(self, name: str) -> None:
        """Deletes the JSON object with this name."""
        (self.root / f"{name}.json").unlink(missing_ok=True)


class StateLock:
    """Context manager that locks a state directory for one worker.

    Args:
        directory: The state directory.
        node: The worker's node; a directory that was used for another node is refused.
    """

    def __init__(self, directory: StateDirectory, node: Address) -> None:
        self._directory = directory
        self._node = node
        self._lock = ExitStack()

    def __enter__(self) -> Self:
        self._directory.prepare()
        try:
            self._lock.enter_context(locked_file(self._directory.root / "lock"))
        except FileLocked as error:
            raise StateInUse(
                f"another worker uses {self._directory.root}",
                hint="give each worker a state directory and a node key of its own, or stop the other one",
            ) from error
        known = self._directory.read("worker")
        if known is not None and known.get("node") != self._node:
            self._lock.close()
            raise StateInUse(
                f"{self._directory.root} belongs to the node {known.get('node')}, not to {self._node}",
                hint="give this node a state directory of its own",
                code="state-of-another-node",
            )
        self._directory.write("worker", {"node": self._node})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()


def make_volume(path: Path, *, user: int | None = None) -> None:
    """Creates a directory that a task can write to as any user; the parent (mode 0700) keeps other users out."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o777)
    if user is not None:
        os.chown(path, user, user)


def check_room(place: Path, needed_bytes: int) -> None:
    """Checks that the file system of a directory has `needed_bytes` free.

    Raises:
        TaskDiskFull: It has less; delivering queued files may free some.
    """
    free = shutil.disk_usage(place).free
    if free < needed_bytes:
        raise TaskDiskFull(
            f"the task asks for {needed_bytes / 2**30:.1f} GiB of disk, {free / 2**30:.1f} GiB are free",
            hint="free some space where the worker's state is, or choose nodes with more",
        )


def remove_tree(path: Path) -> None:
    """Removes a directory with untrusted content; symbolic links are removed, never followed.

    Nested directories are made writable and moved to the top level first, so that a tree of any depth needs few
    descriptors and no recursion. Entries that can't be removed because another user owns them stay.
    """
    try:
        top = _open_directory(str(path), None)
    except OSError:
        path.unlink(missing_ok=True)
        return
    try:
        while _level(top):
            pass
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        path.rmdir()


def _level(top: int) -> bool:
    """Empties and removes the directories now in `top`; returns whether nested ones were moved into `top`."""
    moved = False
    for name in _names(top):
        try:
            directory = _open_directory(name, top)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=top)
            continue
        try:
            for inner in _names(directory):
                moved |= _remove_or_move(inner, directory, top)
        finally:
            os.close(directory)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=top)
    return moved


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _remove_or_move(name: str, directory: int, top: int) -> bool:
    """Removes a file, or moves a directory to `top`; returns True if it moved a directory."""
    with contextlib.suppress(OSError):
        os.close(_open_directory(name, directory))  # makes the directory writable: otherwise it can't be moved
        os.rename(name, token_hex(16), src_dir_fd=directory, dst_dir_fd=top)
        return True
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
    return False


def _open_directory(name: str, parent: int | None) -> int:
    """Opens a directory without following links and sets its mode to 0700."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):
            Path(f"/proc/self/fd/{handle}").chmod(0o700)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
