"""The worker's state directory, which is locked so that only one worker uses it."""

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
from protocol.runtime.files import FileLocked, check_format, locked_file, write_atomically
from protocol.runtime.randomness import token_hex

FORMAT = 1
"""Version of the format of a state directory, in `worker.json`.

A directory without a version is of an earlier release. It has the same files, so `StateLock` only adds the version.
"""
MOST_FILE_BYTES = 1 << 20
"""Maximum size of a saved JSON object, in bytes."""


class StateInUse(Conflict):
    """Another worker uses this state directory."""

    code = "state-in-use"


class TaskDiskFull(Unavailable):
    """The disk has too little free space for a task."""

    code = "no-room"


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """Paths of one worker's files.

    Only the worker's user can read the directory (mode 0700).
    """

    root: Path

    @property
    def tasks(self) -> Path:
        """Directory of task volumes, with one directory per task."""
        return self.root / "tasks"

    @property
    def shared(self) -> Path:
        """The shared volume, which successive tasks use."""
        return self.root / "shared"

    @property
    def processes(self) -> Path:
        """Directory of the process runtime's files."""
        return self.root / "processes"

    @property
    def logs(self) -> Path:
        """Directory of task output, with one directory per assignment."""
        return self.root / "logs"

    @property
    def bridges(self) -> Path:
        """Directory of bridge sockets, with one directory per assignment."""
        return self.root / "bridges"

    @property
    def spool(self) -> Path:
        """Directory with copies of files that wait for delivery."""
        return self.root / "spool"

    @property
    def queue(self) -> Path:
        """Path of the queue's database."""
        return self.root / "queue.sqlite"

    @property
    def images(self) -> Path:
        """Path of the record of images that the worker pulled."""
        return self.root / "images.json"

    @property
    def control_socket(self) -> Path:
        """Path of the unix socket of the daemon's control API."""
        return self.root / "control.sock"

    def prepare(self) -> None:
        """Creates the directories."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root.chmod(0o700)
        for place in (self.tasks, self.processes, self.logs, self.bridges, self.spool):
            place.mkdir(exist_ok=True, mode=0o700)
        make_volume(self.shared)

    def fingerprint_secret(self) -> bytes:
        """Returns the HMAC key of container fingerprints; creates it at first use.

        Fingerprints cover the task's secrets and are stored in container labels, which others can read. With a plain
        hash, a reader could guess a secret and check the guess.
        """
        path = self.root / "fingerprint.secret"
        if not path.exists():
            write_atomically(path, secrets.token_bytes(32))
        return path.read_bytes()

    def read(self, name: str) -> dict[str, Any] | None:
        """Returns the JSON object saved under this name; None if the object is missing or damaged."""
        try:
            with (self.root / f"{name}.json").open("rb") as file:
                content = json.loads(file.read(MOST_FILE_BYTES))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Saves a JSON object atomically and syncs it to disk."""
        write_atomically(self.root / f"{name}.json", json.dumps(dict(content)).encode())

    def forget(self, name: str) -> None:
        """Deletes the JSON object with this name."""
        (self.root / f"{name}.json").unlink(missing_ok=True)


class StateLock:
    """Context manager that locks a state directory for one worker.

    Args:
        directory: The state directory.
        node: Address of the worker's node. A directory that another node has used is refused.

    Raises:
        StateInUse: Another worker or another node uses the directory.
        NewerFormat: A newer release has used the directory.
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
                f"another worker uses the state directory {self._directory.root}",
                hint="give each worker its own state directory and node key, or stop the other worker",
            ) from error
        try:
            self._check_owner(self._directory.read("worker"))
        except BaseException:
            self._lock.close()
            raise
        self._directory.write("worker", {"node": self._node, "format": FORMAT})
        return self

    def _check_owner(self, known: Mapping[str, Any] | None) -> None:
        if known is None:
            return
        check_format(known.get("format"), known=FORMAT, what=f"the state directory {self._directory.root}")
        if known.get("node") != self._node:
            raise StateInUse(
                f"{self._directory.root} belongs to the node {known.get('node')}, not to {self._node}",
                hint="give this node its own state directory",
                code="state-of-another-node",
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()


def make_volume(path: Path, *, user: int | None = None) -> None:
    """Creates a directory to which a task can write as any user.

    The parent directory has mode 0700, which keeps other users out.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o777)
    if user is not None:
        os.chown(path, user, user)


def check_room(place: Path, needed_bytes: int) -> None:
    """Checks that the file system of a directory has `needed_bytes` free.

    Raises:
        TaskDiskFull: Too little space is free. Delivering queued files may free space.
    """
    free = shutil.disk_usage(place).free
    if free < needed_bytes:
        raise TaskDiskFull(
            f"the task needs {needed_bytes / 2**30:.1f} GiB of disk space, but only {free / 2**30:.1f} GiB are free",
            hint="free space on the disk of the worker's state directory, or choose nodes with more space",
        )


def remove_tree(path: Path) -> None:
    """Removes a directory with untrusted content.

    Symbolic links are removed, never followed.

    Nested directories are first made writable and moved to the top level. So a tree of any depth needs few descriptors
    and no recursion. Entries that another user owns may stay, if they can't be removed.
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
    """Empties and removes the directories in `top`.

    Returns whether it moved nested directories into `top`.
    """
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
    """Removes a file, or moves a directory into `top`; returns True if it moved a directory."""
    with contextlib.suppress(OSError):
        os.close(_open_directory(name, directory))  # makes the directory writable: a read-only directory can't be moved
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
