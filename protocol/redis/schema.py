"""Version of the data that a service keeps in Redis, and its migration.

A service writes the version of its schema at the first start. A later start migrates older data step by step, and
refuses data of a newer release, which it would misread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from redis.exceptions import LockError

from protocol.errors import Conflict, MusterError
from protocol.redis.connection import RedisKeys, StoreUnavailable, store_errors
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import cancel_all, finish_with

Migration = Callable[[Redis, RedisKeys], Awaitable[None]]
"""Function that changes data of one schema version to the next.

It may run twice, because the process can be killed before the new version is stored.
"""

UNNUMBERED = 1
"""Version of data without a stored version: that of a first start, or of a release that did not store it."""

MIGRATION_TIMEOUT = timedelta(minutes=10)
"""Time for which an instance waits while another one migrates."""
LOCK_LIFE = timedelta(seconds=10)
"""Life of the lock, which its holder renews while it migrates. So a killed holder delays the next start by no more."""

RESTORING = "restoring"
"""Name of the key that exists while a backup is restored, and after a restore that was interrupted."""

_log = get_logger(__name__)


class RestoreUnfinished(Conflict):
    """A restore of a backup is in progress or was interrupted, so the data may be incomplete."""

    code = "restore-unfinished"
    default_hint = "wait until `muster admin restore` has ended; if it was interrupted, run it again"


class NewerSchema(MusterError):
    """The data in Redis has the schema of a newer release."""

    status = 500
    code = "newer-schema"


async def ensure_schema(
    redis: Redis, keys: RedisKeys, *, service: str, version: int, migrations: Mapping[int, Migration] | None = None
) -> None:
    """Stores the schema version of a service, or migrates its data to it.

    Concurrent starts of several instances wait for each other.

    Args:
        redis: Client of the service's Redis.
        keys: Names of the service's keys.
        service: Name of the service for messages.
        version: Schema version of this release.
        migrations: Migration from each older version to the next; every version from 1 on must have one.

    Raises:
        NewerSchema: The data has a newer version.
        RestoreUnfinished: A backup is being restored, or was not restored completely.
        StoreUnavailable: Redis does not answer, or another instance has been migrating for `MIGRATION_TIMEOUT`, or this
            one lost the lock; the next start continues.
    """
    key = keys.of("schema-version")
    with store_errors():
        stored, restoring = await redis.mget(key, keys.of(RESTORING))
    if restoring is not None:
        raise RestoreUnfinished(f"the data of {service} in Redis is not restored completely")
    if stored == str(version).encode():
        return  # the usual case needs no lock
    longest = MIGRATION_TIMEOUT.total_seconds()
    lock = redis.lock(keys.of("schema-lock"), timeout=LOCK_LIFE.total_seconds(), blocking_timeout=longest)
    with store_errors():
        try:
            async with lock:
                renewing = asyncio.create_task(_renew(lock), name="renew the schema lock")
                migrating = asyncio.create_task(
                    _migrate(redis, keys, key, service=service, version=version, migrations=migrations or {}),
                    name="migrate",
                )
                try:
                    await finish_with(migrating, [renewing])
                finally:
                    await cancel_all([migrating, renewing])
        except LockError as error:
            raise StoreUnavailable(
                f"another instance of {service} migrates its data, for {longest:.0f} s or since this one lost the lock",
                hint="see the log of the other instances",
            ) from error


async def _renew(lock: Lock) -> None:
    """Extends the lock until this task is cancelled.

    Raises:
        LockError: The lock expired, for example while this process was paused, so another instance may hold it.
    """
    while True:
        await asyncio.sleep((LOCK_LIFE / 3).total_seconds())
        await lock.extend(LOCK_LIFE.total_seconds(), replace_ttl=True)


async def _migrate(
    redis: Redis, keys: RedisKeys, key: str, *, service: str, version: int, migrations: Mapping[int, Migration]
) -> None:
    stored = await redis.get(key)
    found = UNNUMBERED if stored is None else int(stored)
    if found > version:
        raise NewerSchema(
            f"the data of {service} in Redis has schema version {found}, and this release reads only {version}",
            hint="start the newer release; this one needs a copy of Redis from before the upgrade",
        )
    for step in range(found, version):
        _log.warning("migrating", service=service, schema=step, to=step + 1)
        await migrations[step](redis, keys)
        await redis.set(key, step + 1)
    await redis.set(key, version)
