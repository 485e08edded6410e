"""Budgets that follow from the machine: memory for weights, disk for policy versions, cores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import psutil

from protocol.runtime.logs import get_logger

MEMORY_SHARE = 2
"""Divisor of the memory: weights may use half of it. Activations, decoded files and the service use the rest."""

DISK_SHARE = 10
"""Divisor of the disk's size: one folder of versions may use a tenth of it."""

FREE_SHARE = 5
"""Divisor of the free space: one service may use a fifth of it. If trainer, relay, validator and worker share a disk,
they leave the last fifth free.
"""

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """Size, age and need of a version that is stored on disk.

    Args:
        size: Size in bytes.
        since: Time of arrival, in seconds since 1970.
        needed: Whether the version is kept even if it exceeds the budget.
    """

    size: int
    since: float
    needed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Determines which versions of a run are still needed.

    Versions are needed by leases, and by work that is not final on the ledger.

    Args:
        at: Time at which `work` was read from the ledger, in seconds since 1970.
        leases: Longest lifetime of a lease.
        work: Numbers of the versions that are named by work that is not final.
    """

    at: float
    leases: timedelta
    work: frozenset[int] = frozenset()

    def of(self, versions: Sequence[tuple[int, StoredVersion]]) -> list[StoredVersion]:
        """Returns the versions with the needed ones marked.

        `versions` contains pairs of a version's number and the version, newest first.

        Let A, B and C be three consecutive versions. The orchestrator leases slots for A until it learns of B. The
        trainer announces B before it writes C. So the last leases for A end within `leases` after the arrival of C.
        """
        marked = []
        for place, (number, version) in enumerate(versions):
            may_be_leased = place < 2 or self.at - versions[place - 2][1].since < self.leases.total_seconds()
            marked.append(replace(version, needed=version.needed or may_be_leased or number in self.work))
        return marked


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """Decision on which versions of a folder are kept.

    Args:
        stays: Whether each version is kept, in the order in which the versions were passed.
        over: Bytes by which the kept versions exceed the budget.
    """

    stays: tuple[bool, ...]
    over: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    """Decides which versions stay in a folder.

    The oldest versions are removed first. Needed versions are never removed.

    Args:
        most: Number of newest versions that may be kept. Older versions stay only if they are needed.
        budget: Budget in bytes; None if only `most` limits the folder.
        least: Number of newest versions that are kept even if they exceed the budget.
    """

    most: int
    budget: int | None = None
    least: int = 1

    def choose(self, versions: Sequence[StoredVersion]) -> VersionChoice:
        """Decides which versions to keep; `versions` is ordered newest first.

        Needed versions and the `least` newest ones use the budget first. Further versions are kept, newest first, until
        one does not fit into the remaining budget.
        """
        stays = [place < self.least or version.needed for place, version in enumerate(versions)]
        total = sum(version.size for version, each in zip(versions, stays, strict=True) if each)
        for place, version in enumerate(versions[: self.most]):
            if not stays[place]:
                if self.budget is not None and total + version.size > self.budget:
                    break
                stays[place] = True
                total += version.size
        return VersionChoice(tuple(stays), 0 if self.budget is None else max(0, total - self.budget))


def keep_rule(folder: Path, *, told: int | None, most: int, least: int = 1) -> KeepRule:
    """Returns the rule for a folder of versions, and logs it.

    Args:
        folder: Folder of the versions; it may not exist yet.
        told: Number of versions to keep as set by the operator, whatever space is free; None if the operator set none.
        most: Maximum number of versions to keep within the disk budget, if `told` is None.
        least: Number of newest versions that are kept even if they exceed the budget.
    """
    if told is not None:
        _log.info("versions-kept", folder=str(folder), versions=told, by="settings")
        return KeepRule(most=told)
    usage = shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists()))
    budget = min(usage.total // DISK_SHARE, (usage.free + size_of(folder)) // FREE_SHARE)
    _log.info(
        "versions-kept",
        folder=str(folder),
        versions=most,
        budget_bytes=budget,
        disk_bytes=usage.total,
        free_bytes=usage.free,
        by="disk",
    )
    return KeepRule(most=most, budget=budget, least=least)


class OverBudget:
    """Logs when needed versions begin to exceed a folder's budget, and when that ends.

    Args:
        folder: Folder of the versions.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bytes = 0

    def note(self, over: int) -> None:
        """Records the current number of bytes beyond the budget; 0 if there are none."""
        if over and not self._bytes:
            _log.warning(
                "versions-over-budget",
                folder=str(self._folder),
                bytes=over,
                hint="leases or unfinished work need them: use a larger disk, or ask the pool for shorter periods",
            )
        elif self._bytes and not over:
            _log.info("versions-within-budget", folder=str(self._folder))
        self._bytes = over


def stored_version(folder: Path) -> StoredVersion:
    """Returns the size and modification time of a version's folder."""
    try:
        since = folder.stat().st_mtime
    except OSError:  # removed since it was listed
        return StoredVersion(0, 0.0)
    return StoredVersion(size_of(folder), since)


def size_of(folder: Path) -> int:
    """Returns the total size of all files below a folder, in bytes.

    The size is 0 if the folder does not exist.
    """
    total = 0
    for path in folder.rglob("*"):
        try:
            total += 0 if path.is_symlink() or not path.is_file() else path.stat().st_size
        except OSError:  # removed since it was listed
            continue
    return total


def machine_memory(*, groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Returns the maximum memory of this process, in bytes.

    This is the smallest of the machine's memory and the limits of the process's control groups.

    Args:
        groups: Mount point of control groups.
        own: File that lists this process's control groups, `/proc/self/cgroup`.
    """
    return min(psutil.virtual_memory().total, *(limit for limit, _ in _limits(groups, own)))


def free_memory(*, groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Returns the memory that this process can still allocate, in bytes.

    The kernel kills processes when a control group exceeds its limit. The result is therefore the smallest of the
    memory that the machine and each control group have left.

    Args:
        groups: Mount point of control groups.
        own: File that lists this process's control groups, `/proc/self/cgroup`.
    """
    left = [max(0, limit - used) for limit, used in _limits(groups, own)]
    return min(psutil.virtual_memory().available, *left)


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def weights_budget(memory: int, *, processes: int) -> int:
    """Returns the maximum size of weights that each of several processes may hold, in bytes.

    Args:
        memory: Bytes of memory of the machine, or of the accelerator that the processes share.
        processes: Number of processes that share it.
    """
    return memory // MEMORY_SHARE // processes


def _limits(groups: Path, own: Path) -> list[tuple[int, int]]:
    """Returns memory limit and memory use, in bytes, of each control group that limits this process.

    Parent groups are included, for cgroup v1 and v2. Without limited groups, the result is one pair with a limit that
    no machine reaches.

    In a container, the mount point often is the container's own group, but `own` names the group's path on the host.
    That path does not exist in the container. Therefore the root of the mount point is tried too.
    """
    found = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in (*lines, "0::/"):
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, limit, use = (
            (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            if controllers
            else (groups, "memory.max", "memory.current")
        )
        group = root / path.lstrip("/")
        for place in (group, *group.parents):
            if not place.is_relative_to(root):
                break
            try:
                found.append((int((place / limit).read_text()), _used(place, use)))
            except (OSError, ValueError):  # no such group, or "max"
                continue
    return found or [(1 << 62, 0)]


def _used(group: Path, use: str) -> int:
    """Returns the memory that a control group uses, in bytes.

    The inactive file cache does not count, because the kernel reclaims it on demand.
    """
    try:
        used = int((group / use).read_text())
    except (OSError, ValueError):
        return 0
    try:
        stat = dict(line.split(" ", maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
        return max(0, used - int(stat.get("total_inactive_file", stat.get("inactive_file", 0))))
    except (OSError, ValueError):
        return used
