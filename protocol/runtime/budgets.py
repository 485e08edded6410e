"""Budgets by the machine's capacity: memory for weights, and disk for versions of the policy."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import psutil
import structlog

MEMORY_SHARE = 2
"""Weights get half of the memory. Activations, decoded files and the service itself use the other half."""

DISK_SHARE = 10
"""Versions in one folder get a tenth of their disk."""

FREE_SHARE = 5
"""Share of the free space that one service may use. Trainer, relay, validator and worker on one disk leave a fifth
free."""

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version on the disk.

    Args:
        size: Size in bytes.
        since: Time of arrival, in seconds since 1970.
        needed: Whether the version is kept even beyond the budget.
    """

    size: int
    since: float
    needed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Determines which versions of a run are needed by leases and by work that is not final.

    Args:
        at: Time for which `work` was read, in seconds since 1970.
        leases: Longest life of a lease.
        work: Numbers of the versions that are named by work that is not final.
    """

    at: float
    leases: timedelta
    work: frozenset[int] = frozenset()

    def of(self, versions: Sequence[tuple[int, StoredVersion]]) -> list[StoredVersion]:
        """Returns the versions with the needed ones marked; `versions` has their numbers, newest first.

        The orchestrator leases slots for version v until it learns of the next version. The trainer announces that
        version before it writes the one after it. So the last leases for v end within `leases` after the arrival of the
        second version after v.
        """
        marked = []
        for place, (number, version) in enumerate(versions):
            may_be_leased = place < 2 or self.at - versions[place - 2][1].since < self.leases.total_seconds()
            marked.append(replace(version, needed=version.needed or may_be_leased or number in self.work))
        return marked


@dataclass(frozen=True, slots=True)
class Choice:
    """Versions that are kept in a folder.

    Args:
        stays: Whether each version is kept, in the order of the versions given.
        over: Bytes by which the kept versions exceed the budget.
    """

    stays: tuple[bool, ...]
    over: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    """Decides which versions stay in a folder. The oldest are removed first; needed ones are never removed.

    Args:
        most: Maximum number of versions to keep, in addition to older ones that are needed.
        budget: Budget in bytes; None if only `most` limits the folder.
        least: Number of newest versions that are kept even beyond the budget.
    """

    most: int
    budget: int | None = None
    least: int = 1

    def choose(self, versions: Sequence[StoredVersion]) -> Choice:
        """Decides which versions to keep; `versions` is ordered newest first.

        Needed versions use the budget first. The newest other versions are kept while they fit into the remaining
        budget.
        """
        stays = [place < self.least or version.needed for place, version in enumerate(versions)]
        total = sum(version.size for version, each in zip(versions, stays, strict=True) if each)
        for place, version in enumerate(versions[: self.most]):
            if not stays[place]:
                if self.budget is not None and total + version.size > self.budget:
                    break
                stays[place] = True
                total += version.size
        return Choice(tuple(stays), 0 if self.budget is None else max(0, total - self.budget))


def keep_rule(folder: Path, *, told: int | None, most: int, least: int = 1) -> KeepRule:
    """Returns the rule for a folder of versions, and logs it.

    Args:
        folder: Folder of the versions; it may not exist yet.
        told: Number of versions to keep, set by the operator. If given, free space is ignored.
        most: Maximum number of versions to keep within the disk budget, if `told` is None.
        least: Number of versions that are kept even beyond the budget.
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
    """Logs when versions that are needed begin to exceed the budget of a folder, and when they no longer do.

    Args:
        folder: Folder of the versions.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bytes = 0

    def note(self, over: int) -> None:
        """Records the present number of bytes beyond the budget."""
        if over and not self._bytes:
            _log.warning(
                "versions-over-budget",
                folder=str(self._folder),
                bytes=over,
                hint="leases or open work need them: give the folder a larger disk, or the pool shorter periods",
            )
        elif self._bytes and not over:
            _log.info("versions-within-budget", folder=str(self._folder))
        self._bytes = over


def stored_version(folder: Path) -> StoredVersion:
    """Returns size and modification time of a version's folder."""
    try:
        since = folder.stat().st_mtime
    except OSError:  # it was removed just now
        return StoredVersion(0, 0.0)
    return StoredVersion(size_of(folder), since)


def size_of(folder: Path) -> int:
    """Returns the bytes of all files below a folder; 0 if the folder does not exist."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += 0 if path.is_symlink() or not path.is_file() else path.stat().st_size
        except OSError:  # it was removed just now
            continue
    return total


def machine_memory(*, groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Returns the bytes of memory that this process may have: the least limit of machine and control groups.

    Args:
        groups: Mount point of control groups.
        own: File that lists this process's control groups, `/proc/self/cgroup`.
    """
    return min(psutil.virtual_memory().total, *(limit for limit, _ in _limits(groups, own)))


def free_memory(*, groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Returns the bytes of memory that this process can allocate now.

    The kernel kills a process that exceeds the limit of its control group, so the result is the least that the machine
    or a group has left.

    Args:
        groups: Mount point of control groups.
        own: File that lists this process's control groups, `/proc/self/cgroup`.
    """
    left = [max(0, limit - used) for limit, used in _limits(groups, own)]
    return min(psutil.virtual_memory().available, *left)


def weights_budget(memory: int, *, processes: int) -> int:
    """Returns the bytes of weights that each of several processes may hold.

    Args:
        memory: Bytes of memory of the machine, or of the accelerator that the processes share.
        processes: Number of processes that share it.
    """
    return memory // MEMORY_SHARE // processes


def _limits(groups: Path, own: Path) -> list[tuple[int, int]]:
    """Returns limit and use in bytes of this process's control groups and their parents, for cgroup v1 and v2.

    A container often sees its own group as the root, so paths relative to that root are tried too.
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
    """Returns the bytes that a group uses, without its inactive file cache, which the kernel reclaims on demand."""
    try:
        used = int((group / use).read_text())
    except (OSError, ValueError):
        return 0
    try:
        stat = dict(line.split(" ", maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
        return max(0, used - int(stat.get("total_inactive_file", stat.get("inactive_file", 0))))
    except (OSError, ValueError):
        return used
