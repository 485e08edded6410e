"""Checks of this machine before a backup: whether everything that it needs is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cli.admin.archive import ServiceName
from cli.admin.backup import objects_bytes, read_key
from cli.admin.records import RedisPlace, redis_facts
from cli.admin.services import Pool, Service
from protocol.errors import MusterError
from protocol.runtime.findings import DoctorFinding, failure, ok, warning
from trainer.run.state.snapshot import open_snapshot


class BackupFinding(NamedTuple):
    """A finding about a service, and the size of its data in a backup, in bytes."""

    service: str
    finding: DoctorFinding
    bytes: int | None = None


async def findings(pool: Pool, to: Path) -> list[BackupFinding]:
    """Checks the services of a pool, and the room in the folder for backups."""
    found = []
    for service in pool.services:
        if service.redis is not None:
            found.append(await _redis(service, service.redis))
        found += _files(service)
    needed, free = sum(one.bytes or 0 for one in found), shutil.disk_usage(to).free
    text = f"{free} bytes are free in {to}, about {needed} are needed"
    room = ok("room", text)
    if needed >= free:
        room = failure("room", text, "name a folder on a disk with more room: --to FOLDER")
    elif not os.access(to, os.W_OK):
        room = failure("room", text, "name a folder that this user may write to: --to FOLDER")
    return [*found, BackupFinding("all", room)]


async def _redis(service: Service, place: RedisPlace) -> BackupFinding:
    try:
        facts = await redis_facts(place)
    except MusterError as error:
        return BackupFinding(service.name, failure("redis", error.detail, error.hint))
    text = (
        f"Redis {facts.version}, appendonly {facts.append_only or 'unknown'}, maxmemory-policy "
        f"{facts.eviction or 'unknown'}, schema version {facts.schema or 'none yet'}"
    )
    finding = ok("redis", text)
    if service.name is ServiceName.ORCHESTRATOR and (
        facts.append_only == "no" or facts.eviction not in {None, "noeviction"}
    ):
        finding = warning("redis", text, "set appendonly yes and maxmemory-policy noeviction (docs/operators.md)")
    return BackupFinding(service.name, finding, facts.used_bytes)


def _files(service: Service) -> Iterator[BackupFinding]:
    if service.state is not None:
        yield _sized(service, "state", service.state, _state_bytes)
    if service.sealing_key is not None:
        yield _sized(service, "sealing key", service.sealing_key, lambda path: len(read_key(path)))
    elif service.name is ServiceName.ORCHESTRATOR:
        text = "none is configured (secrets_key_file), so tasks can't have secrets"
        yield BackupFinding(service.name, ok("sealing key", text))
    if service.objects is not None:
        yield _sized(service, "objects", service.objects, objects_bytes)
    elif service.bucket is not None:
        advice = "files are not in a backup: use versions or a copy of the bucket"
        yield BackupFinding(service.name, warning("objects", f"in the bucket {service.bucket}", advice))


def _state_bytes(folder: Path) -> int:
    with open_snapshot(folder) as snapshot:
        return snapshot.size


def _sized(service: Service, check: str, path: Path, size: Callable[[Path], int]) -> BackupFinding:
    """Returns the size of the data at a path, or the reason for which they can't be read."""
    try:
        return BackupFinding(service.name, ok(check, str(path)), size(path))
    except MusterError as error:
        return BackupFinding(service.name, failure(check, error.detail, error.hint))
    except OSError as error:
        return BackupFinding(
            service.name, failure(check, f"{path}: {error.strerror}", "run this as the service's user")
        )
