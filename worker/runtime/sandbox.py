"""Builds the bubblewrap command line of a task's sandbox.

The task sees this machine's programs read-only (`/usr`, the worker's Python), its volumes and an empty `/tmp`, but no
other files. The task has its own process, IPC and host-name namespaces, no capabilities, and does not run as root. It
has either no network or this machine's network, because an isolated bridge network needs a container engine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from protocol.runtime.bubblewrap import LIBRARY_LINKS, bind, names_of, outermost, parents, system_files
from protocol.wire.tasks import NetworkMode
from worker.runtime.interface import ContainerSpec, LaunchRefused, Mount

ENTER = "/muster/enter.py"
"""Path of the entry program inside the sandbox; see `worker/runtime/enter.py`."""

_SYSTEM = ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl", "/etc/localtime")
_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/ca-certificates")
"""Files that a task with network access needs, for example to resolve names."""
_TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""CPU topology. Inference engines read these files, as `lscpu` does, to bind their threads to cores."""
_TMP_BYTES = 1 << 30
"""Size of `/tmp` in the sandbox, in bytes."""
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Properties of this machine on which the sandbox depends.

    Args:
        bubblewrap: Path of the `bwrap` program.
        readable: Files and directories that are mounted read-only at the same path.
        as_root: Whether the worker is root. If so, no user namespace is needed, and `enter.py` switches the user.
    """

    bubblewrap: str
    readable: tuple[Path, ...]
    as_root: bool


def readable_paths(extra: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Returns the directories of the worker's Python, its packages, and the extra files and directories that exist.

    A path inside another one of them is left out.

    A path behind symbolic links is mounted under each of its names. A virtual environment, for example, may
    contain links that lead out of the mounted directories.
    """
    named = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent, *extra}
    wanted = {name for path in named for name in names_of(path)}
    return tuple(outermost(path for path in wanted if path.exists()))


def refuse_overlaps(mounts: Sequence[Mount], readable: Sequence[Path]) -> None:
    """Checks that no mount hides files of the sandbox and that mounts are not nested.

    If the worker is root, it enters the sandbox as root and executes Python there before it switches the user. A volume
    over Python's library would let the task's owner run code as root. Nested mounts are a risk, because bubblewrap
    creates mount points itself: a link in an outer volume could make bubblewrap create a mount point outside the
    sandbox. The Docker engine has neither problem.

    Args:
        mounts: Mounts of the task.
        readable: Files and directories that are mounted read-only in addition to the system's.

    Raises:
        LaunchRefused: A mount overlaps with the sandbox's files or another mount.
    """
    own = [
        PurePosixPath(path)
        for path in (*_SYSTEM, *LIBRARY_LINKS, "/etc", "/proc", "/dev", "/sys", ENTER, *map(str, readable))
    ]
    targets = [PurePosixPath("/" + mount.target.lstrip("/")) for mount in mounts]
    for position, target in enumerate(targets):
        if any(_overlap(target, path) for path in own):
            raise LaunchRefused(
                f"without Docker a volume can't be mounted at {target}: the sandbox has its own files there",
                hint="choose a path such as /data",
            )
        for other in targets[:position]:
            if _overlap(target, other):
                raise LaunchRefused(
                    f"without Docker a volume can't be mounted inside another: {target} and {other}",
                    hint="choose separate paths, such as /data and /weights",
                )


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def arguments(spec: ContainerSpec, host: Host, *, enter: Path) -> list[str]:
    """Returns the command line that enters the sandbox.

    The entry program reads the environment from standard input.

    Args:
        spec: Spec of the container.
        host: Properties of this machine.
        enter: Path of `enter.py` on this machine.

    Raises:
        LaunchRefused: A mount overlaps; see `refuse_overlaps`.
    """
    refuse_overlaps(spec.mounts, host.readable)
    command = [host.bubblewrap, "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--hostname", "task", "--clearenv"]
    if host.as_root:  # capabilities that `enter.py` needs to switch the user
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--disable-userns"]
    if spec.network is NetworkMode.NONE:
        command.append("--unshare-net")
    command += system_files((*_SYSTEM, *(() if spec.network is NetworkMode.NONE else _NETWORK)))
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in _TOPOLOGY:
        command += bind(path, mode="--ro-bind-try")
    shared = str(spec.resources.shared_memory_bytes)
    command += ["--size", shared, "--perms", "1777", "--tmpfs", "/dev/shm"]  # noqa: S108 - in the sandbox
    command += ["--size", str(_TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108 - in the sandbox
    for readable in host.readable:  # after /tmp, because the worker's Python may be below /tmp
        command += bind(readable)
    for mount in spec.mounts:
        command += parents(mount.target)
        command += ["--ro-bind" if mount.read_only else "--bind", str(mount.source), mount.target]
    if spec.gpu_indices:
        for device in (*_GPU_DEVICES, *(f"/dev/nvidia{index}" for index in spec.gpu_indices)):
            command += ["--dev-bind-try", device, device]
    command += ["--ro-bind", str(enter), ENTER, "--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108
    return [*command, "--", sys.executable, "-I", "-S", ENTER]
