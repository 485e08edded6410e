"""Checks of this machine before a backup: whether everything that it needs is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.admin.backup import bytes_below, read_key
from cli.admin.redis_copy import redis_facts
from cli.admin.services import Pool, Service
from cli.admin.trainer_copy import open_copy
from protocol.errors import MusterError

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True, slots=True)
class BackupFinding:
    """One line of the report.

    Args:
        service: The service.
        check: Name of the check.
        level: `ok`; `warning`; or `failure`: a backup is impossible or would lack something.
        found: What was found.
        advice: What to do; empty if nothing.
        bytes: Size of what a backup would have; None if it is nothing of its own.
    """

    service: str
    check: str
    level: str
    found: str
    advice: str = ""
    bytes: int | None = None


async def findings(pool: Pool, to: Path) -> list[BackupFinding]:
    """Checks the services of a pool, and the room in the folder for backups."""
    found = [one for service in pool.services async for one in _of(service)]
    needed, free = sum(one.bytes or 0 for one in found), shutil.disk_usage(to).free
    level, advice = (OK, "") if needed < free else (FAILURE, "name a folder on a disk with more room: --to FOLDER")
    if level == OK and not os.access(to, os.W_OK):
        level, advice = FAILURE, "name a folder that this user may write to: --to FOLDER"
    found.append(
        BackupFinding("all", "room", level, f"{free} bytes are free in {to}, about {needed} are needed", advice)
    )
    return found


async def _of(service: Service) -> AsyncIterator[BackupFinding]:
    if service.redis is not None:
        try:
            facts = await redis_facts(service.redis.url, service.redis.keys)
        except MusterError as error:
            yield BackupFinding(service.name, "redis", FAILURE, error.detail, error.hint)
        else:
            level, advice = OK, ""
            lost = [facts.append_only == "no", facts.eviction not in {None, "noeviction"}]
            if any(lost) and service.name == "orchestrator":
                level, advice = WARNING, "set appendonly yes and maxmemory-policy noeviction (docs/operators.md)"
            yield BackupFinding(
                service.name,
                "redis",
                level,
                f"Redis {facts.version}, appendonly {facts.append_only or 'unknown'}, maxmemory-policy "
                f"{facts.eviction or 'unknown'}, schema version {facts.schema or 'none yet'}",
                advice,
                facts.used_bytes,
            )
    for one in (*_of_orchestrator(service), *_of_trainer(service)):
        yield one


def _of_orchestrator(service: Service) -> Iterator[BackupFinding]:
    if service.name != "orchestrator":
        return
    if service.sealing_key is None:
        advice = "tasks can't have secrets; set secrets_key_file if they shall"
        yield BackupFinding(service.name, "sealing key", OK, "none is configured", advice)
    else:
        yield _tried(service, "sealing key", service.sealing_key, lambda path: len(read_key(path)))
    if service.objects is None:
        advice = "files are not in a backup: use versions or a copy of the bucket"
        yield BackupFinding(service.name, "objects", WARNING, f"in the bucket {service.bucket}", advice)
    else:
        yield _tried(service, "objects", service.objects, lambda path: bytes_below(path / "objects"))


def _of_trainer(service: Service) -> Iterator[BackupFinding]:
    if service.state is not None:
        yield _tried(service, "state", service.state, _state_bytes)


def _state_bytes(folder: Path) -> int:
    with open_copy(folder) as copy:
        return sum(os.fstat(file.fileno()).st_size for file in copy.files.values()) + len(copy.journal)


def _tried(service: Service, check: str, path: Path, size: Callable[[Path], int]) -> BackupFinding:
    """Returns the size of what is at a path, or the reason for which it can't be read."""
    try:
        return BackupFinding(service.name, check, OK, str(path), bytes=size(path))
    except MusterError as error:
        return BackupFinding(service.name, check, FAILURE, error.detail, error.hint)
    except OSError as error:
        return BackupFinding(
            service.name, check, FAILURE, f"{path}: {error.strerror}", "run this as the service's user"
        )
