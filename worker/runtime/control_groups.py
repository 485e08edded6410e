"""Limits the resources of tasks without Docker by control groups (cgroup v2 or v1), if the machine allows them.

Without control groups, the keeper checks the task's memory use itself. The number of processes is then limited by
`RLIMIT_NPROC` if the worker is root, and else not at all.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from protocol.wire.tasks import Resources

ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000


def make_control_groups(name: str, resources: Resources, *, root: Path = ROOT) -> tuple[Path, ...]:
    """Creates control groups with the task's limits.

    If one of them, or one of their limits, can't be set up, it removes all of them and returns none.
    """
    made: list[Path] = []
    try:
        if (root / "cgroup.controllers").exists():
            _version_2(name, resources, root, made)
        else:
            _version_1(name, resources, root, made)
    except OSError:
        remove_control_groups(made)
        return ()
    return tuple(made)


def remove_control_groups(groups: list[Path] | tuple[Path, ...]) -> None:
    """Removes empty control groups.

    Groups that still have processes stay.
    """
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()


def find_control_groups(name: str, *, root: Path = ROOT) -> tuple[Path, ...]:
    """Returns the control groups that `make_control_groups` created under this name."""
    places = (root / "muster" / name, *(root / kind / "muster" / name for kind in ("memory", "pids", "cpu")))
    return tuple(place for place in places if place.is_dir())


def _version_2(name: str, resources: Resources, root: Path, made: list[Path]) -> None:
    parent = root / "muster"
    parent.mkdir(exist_ok=True)
    for place in (root, parent):
        (place / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    group = parent / name
    group.mkdir(exist_ok=True)
    made.append(group)
    (group / "memory.max").write_text(str(resources.memory_bytes))
    with contextlib.suppress(OSError):  # absent without swap accounting
        (group / "memory.swap.max").write_text("0")
    (group / "pids.max").write_text(str(resources.pids))
    (group / "cpu.max").write_text(f"{_quota(resources)} {_PERIOD_US}")


def _version_1(name: str, resources: Resources, root: Path, made: list[Path]) -> None:
    limits = {
        "memory": {"memory.limit_in_bytes": str(resources.memory_bytes)},
        "pids": {"pids.max": str(resources.pids)},
        "cpu": {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(_quota(resources))},
    }
    for kind, values in limits.items():
        if not os.access(root / kind, os.W_OK):
            raise PermissionError(kind)
        group = root / kind / "muster" / name
        group.mkdir(parents=True, exist_ok=True)
        made.append(group)
        for file, value in values.items():
            (group / file).write_text(value)


def _quota(resources: Resources) -> int:
    return max(1000, int(resources.cpus * _PERIOD_US))
