"""Budgets by what the machine has: memory for weights, and disk for versions of the policy."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import structlog

MEMORY_SHARE = 2
"""Weights get half of the memory; activations, files that are decoded and the service have the rest."""

DISK_SHARE = 10
"""Versions in one folder get a tenth of their disk: origin, relay, validator, worker and trainer may share it."""

NEEDED_FOR = timedelta(hours=2)
"""Time for which a superseded version is kept: live leases (`run_lease_s`) and work that awaits its verdict (the pool's
judge period, 1 h by default) may still name it."""

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version on the disk.

    Args:
        size: In bytes.
        since: When it came, in seconds since 1970.
    """

    size: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    """Decides how many versions stay in a folder. The oldest go first.

    Args:
        most: So many stay at most, except those that may be needed and fit into the budget.
        budget: Bytes; None if only `most` counts.
        needed_for: How long a version may be needed after the next one came.
        least: So many stay whatever they take.
    """

    most: int
    budget: int | None = None
    needed_for: timedelta = timedelta(0)
    least: int = 1

    def count(self, versions: Sequence[StoredVersion], *, now: float) -> int:
        """Returns how many of the versions, given newest first, stay.

        Versions above `most` are removed unless needed; those within it are removed only to meet the budget, and never
        while needed.
        """
        total, followed = 0, now
        for place, version in enumerate(versions):
            total += version.size
            needed = now - followed < self.needed_for.total_seconds()
            fits = self.budget is None or total <= self.budget
            stays = (fits or needed) if place < self.most else (fits and needed and self.budget is not None)
            if place >= self.least and not stays:
                return place
            followed = version.since
        return len(versions)


def keep_rule(
    folder: Path, *, told: int | None, most: int, least: int = 1, needed_for: timedelta = timedelta(0)
) -> KeepRule:
    """Makes the rule for a folder of versions, and logs it.

    Args:
        folder: Where they lie, or will.
        told: How many to keep, by the operator; then nothing else counts.
        most: How many to keep otherwise, if they fit.
        least: How many to keep whatever they take.
        needed_for: How long a version may be needed after the next one came.
    """
    if told is not None:
        _log.info("versions-kept", folder=str(folder), versions=told, by="settings")
        return KeepRule(most=told)
    usage = shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists()))
    budget = min(usage.total // DISK_SHARE, (usage.free + size_of(folder)) // 2)
    _log.info(
        "versions-kept",
        folder=str(folder),
        versions=most,
        budget_bytes=budget,
        disk_bytes=usage.total,
        free_bytes=usage.free,
        by="disk",
    )
    return KeepRule(most=most, budget=budget, needed_for=needed_for, least=least)


def stored_version(folder: Path) -> StoredVersion:
    """Size of a version's folder, and when it was made."""
    try:
        since = folder.stat().st_mtime
    except OSError:  # it was removed just now
        return StoredVersion(0, 0.0)
    return StoredVersion(size_of(folder), since)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder; 0 for one that is not there."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += 0 if path.is_symlink() or not path.is_file() else path.stat().st_size
        except OSError:  # it was removed just now
            continue
    return total


def machine_memory(*, groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Returns the bytes of memory that this process may have: the machine's, or the least limit of its control groups.

    Args:
        groups: Where control groups are mounted.
        own: The kernel's list of this process's groups.
    """
    return min(psutil.virtual_memory().total, *(limit for limit, _ in _limits(groups, own)))


def free_memory(*, groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Returns the bytes that this process can take now.

    A process that takes more than its group may is killed without a word, so each group counts besides the machine.

    Args:
        groups: Where control groups are mounted.
        own: The kernel's list of this process's groups.
    """
    left = [max(0, limit - used) for limit, used in _limits(groups, own)]
    return min(psutil.virtual_memory().available, *left)


def weights_budget(memory: int, *, processes: int) -> int:
    """Returns the bytes of weights that each of several processes may hold.

    Args:
        memory: Of the machine, or of the accelerator that they share.
        processes: How many share it.
    """
    return memory // MEMORY_SHARE // processes


def _limits(groups: Path, own: Path) -> list[tuple[int, int]]:
    """Limit and use of this process's groups and of those around them, in both versions of control groups.

    A container often sees its own group as the root, so the paths are looked up from there too.
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
    """Bytes that a group uses, without idle cache of files: the kernel gives that back when memory is wanted."""
    try:
        used = int((group / use).read_text())
    except (OSError, ValueError):
        return 0
    try:
        stat = dict(line.split(" ", maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
        return max(0, used - int(stat.get("total_inactive_file", stat.get("inactive_file", 0))))
    except (OSError, ValueError):
        return used
