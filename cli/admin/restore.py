"""Restores a pool's services from a backup.

A restore reads the backup twice: the first time it verifies everything and writes nothing. Before it writes, it marks
the data of each service as incomplete, so that no service starts with them; at the end it removes the marks. An
interrupted restore leaves the marks and can be run again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import IO

from cli.admin.archive import About, ArchiveReader, BadBackup, ServiceName
from cli.admin.records import redis_facts
from cli.admin.services import Pool, Service
from cli.admin.targets import OtherBackup, RedisTarget, Target, open_target
from cli.admin.verify import PARTS_OF, Verified, begin, verify
from protocol.errors import Conflict, InvalidInput, MusterError
from protocol.redis.schema import NewerSchema


class NotEmpty(Conflict):
    """There are data that a restore would replace."""

    code = "not-empty"
    default_hint = "check that these data may be lost, then add --replace"


async def restore(
    file: IO[bytes],
    pool: Pool,
    *,
    passphrase: bytes | None = None,
    replace: bool = False,
    only: Sequence[ServiceName] = (),
) -> Verified:
    """Restores the services of a pool from a backup.

    Args:
        file: The open backup.
        pool: The services on this machine.
        passphrase: Passphrase of an encrypted backup.
        replace: Replace data that exist.
        only: Names of services to restore; by default all in the backup.

    Raises:
        BadBackup: The backup is damaged.
        OtherBackup: It is of another pool, or of a service that is not configured here.
        NewerSchema: A newer release wrote its data.
        ServicesRunning, AnotherTrainer: A service is running.
        NotEmpty: There are data, and `replace` is false.
    """
    about = begin(file, passphrase).about
    services = _wanted(about, pool, only)
    for service in services:
        await _check_service(service, about)
    verified = verify(file, passphrase)
    _check_room(services, verified)
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(open_target(service)) for service in services]
        for target in targets:
            await target.check_unused()
            if not replace and not await target.is_marked() and (existing := await target.existing()):
                raise NotEmpty(existing)
            sample = verified.samples.get(f"{target.service.name}-redis")
            if isinstance(target, RedisTarget) and sample is not None:
                await target.check_readable(sample)
        await _mark(targets)
        for target in targets:
            await target.clear()
        try:
            await _write_all(targets, begin(file, passphrase), verified)
        except BadBackup as error:
            raise BadBackup(
                error.detail, hint="the data are marked as incomplete: run this again with an undamaged backup"
            ) from error
        os.sync()  # everything is on the disk before the marks are removed
        for target in targets:
            await target.check_unused()  # no service was started meanwhile
            await target.unmark()
    return verified


async def _write_all(targets: Sequence[Target], archive: ArchiveReader, verified: Verified) -> None:
    by_part = {part: target for target in targets for part in PARTS_OF[target.service.name]}
    for member in archive.members():
        if (found := by_part.get(member.part)) is not None:
            await found.write(member)
    if archive.parts != verified.parts:
        raise BadBackup("the file of the backup changed while it was read")


async def _mark(targets: Sequence[Target]) -> None:
    """Marks the data of all targets as incomplete, or of none if a service was started meanwhile."""
    marked: list[Target] = []
    try:
        for target in targets:
            marked += [target] if await target.mark() else []
        for target in targets:
            await target.check_unused()
    except MusterError:
        for target in marked:
            await target.unmark()
        raise


def _wanted(about: About, pool: Pool, only: Sequence[ServiceName]) -> list[Service]:
    if about.pool != pool.identity:
        raise OtherBackup(
            f"the backup is of {about.pool}, and this configuration is of {pool.identity}",
            hint="use the backup and the configuration of the same pool",
        )
    known = {one.name: one for one in pool.services}
    names = [one.name for one in about.services if not only or one.name in only]
    if missing := [name for name in only if name not in names]:
        raise OtherBackup(f"the backup has no {missing[0]}", hint="`muster admin check FILE` lists what it has")
    if missing := [name for name in names if name not in known]:
        raise OtherBackup(
            f"the backup has the state of the {missing[0]}, which is not configured here",
            hint="use a configuration with all of its services, or name those to restore with --service",
        )
    return [known[name] for name in names]


async def _check_service(service: Service, about: About) -> None:
    of = next(one for one in about.services if one.name == service.name)
    if service.redis is not None:
        if (of.schema_version or 1) > service.redis.schema:
            raise NewerSchema(
                f"the backup has schema version {of.schema_version} of the {service.name}, and this release reads only "
                f"{service.redis.schema}",
                hint=f"restore it with release {about.release}, which made it",
            )
        facts = await redis_facts(service.redis)
        if _numbers(of.redis_version or "") > _numbers(facts.version):
            raise OtherBackup(
                f"the backup is of Redis {of.redis_version}, and this is Redis {facts.version}, which can't read it",
                hint="use the same or a newer version of Redis",
            )
    for setting, then, now in (("run", of.run, service.run), ("storage_bucket", of.bucket, service.bucket)):
        if then != now:
            raise OtherBackup(
                f"`{setting}` of the {service.name} was {then!r} when the backup was made, and is {now!r} now",
                hint=f"correct `{setting}`: a run has its own state, and a backup has no files of a bucket",
            )


def _numbers(version: str) -> tuple[int, ...]:
    """Returns major and minor number of a Redis version, which determine how it stores values."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _check_room(services: Sequence[Service], verified: Verified) -> None:
    sizes = {part.name: part.bytes for part in verified.parts}
    for service in services:
        if (folder := service.storage or service.state) is None:
            continue
        needed = sizes.get(PARTS_OF[service.name][-1], 0)
        there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
        if (free := shutil.disk_usage(there).free) < needed:
            raise InvalidInput(f"{folder} needs {needed} bytes, and {free} are free", hint="make room on that disk")
