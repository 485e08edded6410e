"""Data of services into which a backup is restored: keys in Redis, files of an orchestrator, a trainer's state."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError, ResponseError

from cli.admin.archive import BadBackup, Member, ServiceName
from cli.admin.records import LONGEST_RECORDS, RedisPlace, decoded
from cli.admin.services import Service
from protocol.errors import Conflict, InvalidInput, Unavailable
from protocol.redis.connection import connect_redis, store_errors, store_unavailable
from protocol.redis.schema import RESTORING
from protocol.redis.snapshot import NO_EXPIRY, TIMEOUT, batches, pattern
from protocol.runtime.files import atomic_file, create_atomically
from trainer.run.state.folder import RESTORING_FILE, lock_state
from trainer.run.state.snapshot import is_state_file

_SANITIZE = "sanitize-dump-payload"
_UNREADABLE = ("DUMP payload", "Bad data format")
"""Texts of Redis errors which mean that a value can't be restored."""
_MOST_AT_ONCE = 512
"""Maximum number of keys that are written in one round trip."""


class OtherBackup(Conflict):
    """A backup does not fit this pool or this machine."""

    code = "other-backup"


class ServicesRunning(Conflict):
    """A service uses the data that is to be replaced."""

    code = "services-running"


class RedisTarget:
    """A service's keys in Redis.

    Args:
        service: The service.
        place: Its data in Redis.
        redis: Client of that Redis.
    """

    def __init__(self, service: Service, place: RedisPlace, redis: Any) -> None:  # noqa: ANN401 - redis-py's types
        self.service = service
        self._keys = place.keys
        self._redis = redis

    async def check_unused(self) -> None:
        """Checks that no process of the service works with this Redis.

        Raises:
            ServicesRunning: A process holds a leader lease or listens to the service's messages.
        """
        with store_errors():
            leases = [name async for name in self._redis.scan_iter(f"{self._keys.of('lease')}:*", count=1000)]
            listened = await self._redis.pubsub_channels(pattern(self._keys))
        trainer = self._keys.of("lease", "trainer").encode()  # held over HTTP, so it ends when the orchestrator ends
        if listened or any(not name.startswith(trainer) for name in leases):
            name = self.service.name
            raise ServicesRunning(
                f"the {name} is running: it works with {pattern(self._keys)} in this Redis",
                hint=f"stop all instances of the {name}; one that was killed counts as running for some seconds more",
            )

    async def check_readable(self, value: bytes) -> None:
        """Checks that this Redis can read a value of the backup, by a key that it deletes at once.

        Raises:
            BadBackup: It can't.
            StoreUnavailable: Redis does not answer, or is full.
        """
        key = self._keys.of(RESTORING, "sample").encode()
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.restore(key, 1, value, replace=True)
        pipeline.unlink(key)
        with store_errors():
            answers = await pipeline.execute(raise_on_error=False)
        _check_restored(answers[:1])

    async def is_marked(self) -> bool:
        """Returns whether the data are marked as incomplete, because an earlier restore was interrupted."""
        with store_errors():
            return bool(await self._redis.exists(self._keys.of(RESTORING)))

    async def existing(self) -> str:
        """Says which data a restore would replace; empty if there are none."""
        with store_errors():
            async for _ in self._redis.scan_iter(pattern(self._keys), count=1000):
                return f"the {self.service.name} has data in this Redis"
        return ""

    async def mark(self) -> bool:
        """Marks the data as incomplete; returns whether they were not marked before."""
        with store_errors():
            return bool(await self._redis.set(self._keys.of(RESTORING), 1, nx=True))

    async def unmark(self) -> None:
        """Marks the data as complete."""
        with store_errors():
            await self._redis.delete(self._keys.of(RESTORING))

    async def clear(self) -> None:
        """Deletes all data but the mark."""
        mark, cursor = self._keys.of(RESTORING).encode(), None
        with store_errors():
            while cursor != 0:
                cursor, names = await self._redis.scan(cursor or 0, match=pattern(self._keys), count=1000)
                if deleted := [name for name in names if name != mark]:
                    await self._redis.unlink(*deleted)

    async def write(self, member: Member) -> None:
        """Writes the keys in a file of the backup; those that have expired meanwhile are left out.

        Raises:
            BadBackup: Redis can't read a value.
            StoreUnavailable: Redis does not answer, or is full.
        """
        with store_errors():
            seconds, microseconds = await self._redis.time()
        now = seconds * 1000 + microseconds // 1000
        prefix = self._keys.prefix.encode()
        for some in batches(list(decoded(member.content(most=LONGEST_RECORDS))), _MOST_AT_ONCE):
            pipeline = self._redis.pipeline(transaction=False)
            for each in some:
                if each.value and (each.expires_ms == NO_EXPIRY or each.expires_ms > now):
                    pipeline.restore(prefix + each.key, each.expires_ms, each.value, replace=True, absttl=True)
                else:
                    pipeline.unlink(prefix + each.key)
            with store_errors():
                answers = await pipeline.execute(raise_on_error=False)
            _check_restored(answers)


class _OrchestratorTarget(RedisTarget):
    """An orchestrator's keys in Redis, its key files and the pool's files. The mark in Redis is for all of them."""

    async def existing(self) -> str:
        if found := await super().existing():
            return found
        for path in filter(None, (self.service.sealing_key, self.service.objects)):
            if path.is_file() or (path.is_dir() and any(path.iterdir())):
                return f"{path} exists"
        return ""

    async def write(self, member: Member) -> None:
        match member.part:
            case "orchestrator-objects":
                if (folder := self.service.objects) is not None:
                    _write(folder / member.rest, member, root=folder)
            case "orchestrator-secrets":
                if (path := self.service.key_files.get(member.rest)) is None:
                    raise OtherBackup(
                        f"the backup has {member.name}, and the settings have no place for it",
                        hint="set secrets_key_file under [orchestrator]: the key decrypts secrets of tasks",
                    )
                _write(path, member, root=path.parent)
            case _:
                await super().write(member)


class _TrainerTarget:
    """A trainer's state directory, whose lock this process holds. Methods as of `RedisTarget`."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        self._folder = folder
        self._mark = folder / RESTORING_FILE

    async def check_unused(self) -> None:
        """Does nothing, because no trainer starts without the lock."""

    async def is_marked(self) -> bool:
        return self._mark.exists()

    async def existing(self) -> str:
        found = next(self._replaced(), None)
        return "" if found is None else f"{found} exists"

    async def mark(self) -> bool:
        if self._mark.exists():
            return False
        create_atomically(self._mark, b"")
        return True

    async def unmark(self) -> None:
        self._mark.unlink()

    async def clear(self) -> None:
        for path in self._replaced():
            path.unlink()

    async def write(self, member: Member) -> None:
        _write(self._folder / member.rest, member, root=self._folder)

    def _replaced(self) -> Iterator[Path]:
        """Yields the files that a trainer wrote, which a restore removes; files of other names stay."""
        for folder in (self._folder, self._folder / "rollouts"):
            if folder.is_dir() and not folder.is_symlink():
                for path in list(folder.iterdir()):
                    if is_state_file(str(path.relative_to(self._folder))) and not path.is_dir():
                        yield path


Target = RedisTarget | _TrainerTarget


@asynccontextmanager
async def open_target(service: Service) -> AsyncIterator[Target]:
    """Connects to a service's Redis, or locks a trainer's state directory, until the block ends.

    Makes Redis check values before it accepts them. By default Redis trusts the values of `RESTORE`, and a forged one
    can crash it. Where `CONFIG` is forbidden, its operator's setting stays.

    Raises:
        AnotherTrainer: A trainer works with the directory.
        StoreUnavailable: Redis does not answer.
    """
    if service.state is not None:
        with lock_state(service.state, restoring=True):
            if os.geteuid() == 0:  # the trainer opens the lock file, too
                owner = service.state.stat()
                for path in service.state.glob("*.lock"):
                    os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
            yield _TrainerTarget(service, service.state)
        return
    if service.redis is None:
        raise ValueError(f"the {service.name} has neither a Redis nor a state directory")
    redis: Any = connect_redis(service.redis.url, timeout=TIMEOUT)
    before: dict[str, str] = {}
    try:
        with store_errors(), suppress(ResponseError):
            before = await redis.config_get(_SANITIZE)
            await redis.config_set(_SANITIZE, "yes")
        kind = _OrchestratorTarget if service.name is ServiceName.ORCHESTRATOR else RedisTarget
        yield kind(service, service.redis, redis)
    finally:
        with suppress(RedisError):
            if before:
                await redis.config_set(_SANITIZE, next(iter(before.values())))
        await redis.aclose()


def _check_restored(answers: Sequence[Any]) -> None:
    for answer in answers:
        if isinstance(answer, ResponseError):
            if any(words in str(answer) for words in _UNREADABLE):
                raise BadBackup(f"Redis can't read a value of the backup: {answer}", hint="use the same Redis version")
            hint = "give Redis more memory, then run it again"
            raise Unavailable(f"Redis refused to restore a key: {answer}", hint=hint)
        if isinstance(answer, Exception):
            raise store_unavailable(answer)


def _write(path: Path, member: Member, *, root: Path) -> None:
    """Writes a file of a backup; it appears when it is complete, and is on the disk after `os.sync`.

    Files and folders get the owner of the folder in which they are made, so that a service can use them although root
    has restored them.

    Args:
        path: The file.
        member: Its content.
        root: Folder of the settings that `path` is below. Folders between must be no links, which could lead elsewhere.

    Raises:
        InvalidInput: A folder between `root` and `path` is a link.
    """
    if linked := [each for each in path.parents if each.is_relative_to(root) and each != root and each.is_symlink()]:
        raise InvalidInput(f"{linked[0]} is a link", hint="make it a folder, then run this again")
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = (made[-1].parent if made else path.parent).stat()
    with atomic_file(path, sync=False) as file:
        file.writelines(member.pieces)
        if os.geteuid() == 0:
            for folder in made:
                os.chown(folder, owner.st_uid, owner.st_gid, follow_symlinks=False)
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
