"""Verifies a backup, and restores it.

A restore reads the backup twice: the first time it verifies everything and writes nothing. Before it writes, it marks
the data of each service as incomplete, so that no service starts with them; at the end it removes the marks. An
interrupted restore leaves the marks and can be run again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cli.admin.archive import PIECE, About, ArchiveReader, BadBackup, Member, Part, Source
from cli.admin.backup import MOST_KEY_BYTES, is_object
from cli.admin.encryption import MAGIC, DecryptingSource
from cli.admin.redis_copy import LONGEST_RECORDS, RedisTarget, decoded, redis_facts, redis_target
from cli.admin.services import Pool, Service
from cli.admin.trainer_copy import is_state_file
from protocol.errors import Conflict, InvalidInput, MusterError, NotFound
from protocol.redis.schema import NewerSchema
from protocol.runtime.files import create_atomically
from trainer.run.state.folder import RESTORING_FILE, lock_state

FOOTER_BYTES = 10
"""Bytes at the end of a value that Redis dumped: format version and checksum."""
ROLLOUTS_FOLDER = "rollouts"

PARTS_OF = {
    "orchestrator": ("orchestrator-redis", "orchestrator-secrets", "orchestrator-objects"),
    "gateway": ("gateway-redis",),
    "validator": ("validator-redis",),
    "trainer": ("trainer-state",),
}
"""Parts of each service in a backup. The first one is in every backup of the service."""


class OtherBackup(Conflict):
    """A backup does not fit this pool or this machine."""

    code = "other-backup"


class NotEmpty(Conflict):
    """There are data that a restore would replace."""

    code = "not-empty"
    default_hint = "check that these data may be lost, then add --replace"


@dataclass(frozen=True, slots=True)
class Verified:
    """A complete and undamaged backup.

    Args:
        about: What it is of.
        parts: Its parts.
        samples: One value of each part of Redis, by the part's name.
    """

    about: About
    parts: tuple[Part, ...]
    samples: Mapping[str, bytes]


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Opens the file of a backup, for all reads of one command.

    Raises:
        NotFound: The file does not exist.
        InvalidInput: It is no plain file.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="check the path") from error
    except IsADirectoryError as error:
        raise InvalidInput(f"{path} is a folder", hint="name the file of a backup") from error
    with file:
        if not file.seekable():
            raise InvalidInput(f"{path} can't be read twice", hint="copy it into a file first")
        yield file


def reader(file: IO[bytes], passphrase: bytes | None) -> ArchiveReader:
    """Begins to read a backup.

    Raises:
        InvalidInput: It is encrypted, and there is no passphrase; or the other way round.
        BadBackup: It is no backup.
    """
    length = os.fstat(file.fileno()).st_size
    file.seek(0)
    encrypted = file.read(len(MAGIC)) == MAGIC
    if encrypted and passphrase is None:
        raise InvalidInput("the backup is encrypted", hint="name the file with its passphrase: --passphrase-file FILE")
    if not encrypted and passphrase is not None:
        # Otherwise the command would accept any unencrypted file that somebody put in place of the backup.
        raise InvalidInput("the backup is not encrypted", hint="leave out --passphrase-file if that is as you expect")
    source: Source = file
    if encrypted and passphrase is not None:
        source = DecryptingSource(file, passphrase)
    else:
        file.seek(0)
    return ArchiveReader(source, length=length)


def verify(file: IO[bytes], passphrase: bytes | None) -> Verified:
    """Reads a whole backup and checks everything in it; writes nothing.

    Raises:
        BadBackup: It is damaged, truncated, or has something that no backup has.
        NewerFormat: A newer release wrote it.
    """
    archive = reader(file, passphrase)
    samples: dict[str, bytes] = {}
    allowed = {part for service in archive.about.services for part in PARTS_OF[service.name]}
    for member in archive.members():
        if member.part not in allowed:
            raise BadBackup(f"{member.name} is in no part of the services that the backup names")
        _check(member, samples)
    for service in archive.about.services:
        if (needed := PARTS_OF[service.name][0]) not in {part.name for part in archive.parts}:
            raise BadBackup(f"the backup names the {service.name}, but has no {needed}")
    return Verified(archive.about, archive.parts, samples)


def _check(member: Member, samples: dict[str, bytes]) -> None:
    """Checks a file of a backup without writing it."""
    match member.part:
        case "orchestrator-redis" | "gateway-redis" | "validator-redis":
            _check_values(member, samples)
        case "orchestrator-secrets":
            if member.rest not in {"sealing.key", "url.secret"} or member.size > MOST_KEY_BYTES:
                raise BadBackup(f"{member.name} is no key of an orchestrator")
        case "orchestrator-objects":
            if not is_object(member.rest):
                raise BadBackup(f"{member.name} is no file of a pool's store")
            if _sha256(member.pieces) != member.rest.rpartition("/")[2]:
                raise BadBackup(f"the content of {member.name} does not have the SHA-256 in its name")
        case _:
            if not is_state_file(member.rest):
                raise BadBackup(f"{member.name} is no file of a trainer's state")


def _check_values(member: Member, samples: dict[str, bytes]) -> None:
    for record in decoded(member.content(most=LONGEST_RECORDS)):
        if not record.value:
            continue  # the key was deleted while the backup was made
        sample = samples.setdefault(member.part, record.value)
        if len(record.value) < FOOTER_BYTES or _dump_version(record.value) != _dump_version(sample):
            raise BadBackup(f"{member.name} has a value that Redis did not write")


async def restore(
    file: IO[bytes], pool: Pool, *, passphrase: bytes | None = None, replace: bool = False, only: Sequence[str] = ()
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
    about = reader(file, passphrase).about
    services = _wanted(about, pool, only)
    for service in services:
        await _check_service(service, about)
    verified = verify(file, passphrase)
    _check_room(services, verified)
    async with AsyncExitStack() as stack:
        targets = [await _target(service, stack) for service in services]
        for target in targets:
            await target.check(replace=replace)
            await target.check_readable(verified.samples.get(f"{target.service.name}-redis"))
        await _mark(targets)
        for target in targets:
            await target.clear()
        try:
            await _write_all(targets, reader(file, passphrase), verified)
        except BadBackup as error:
            raise BadBackup(
                error.detail, hint="the data are marked as incomplete: run this again with an undamaged backup"
            ) from error
        os.sync()  # everything is on the disk before the marks are removed
        for target in targets:
            await target.finish()
    return verified


async def _write_all(targets: Sequence[_Target], archive: ArchiveReader, verified: Verified) -> None:
    by_part = {part: target for target in targets for part in PARTS_OF[target.service.name]}
    for member in archive.members():
        if (found := by_part.get(member.part)) is not None:
            await found.write(member)
    if archive.parts != verified.parts:
        raise BadBackup("the file of the backup changed while it was read")


async def _mark(targets: Sequence[_Target]) -> None:
    """Marks the data of all targets as incomplete, or of none if a service was started meanwhile."""
    marked: list[_Target] = []
    try:
        for target in targets:
            marked += [target] if await target.mark() else []
        for target in targets:
            await target.check_unused()
    except MusterError:
        for target in marked:
            await target.unmark()
        raise


def _wanted(about: About, pool: Pool, only: Sequence[str]) -> list[Service]:
    here = (pool.id, pool.chain_id, pool.ledger)
    if (about.pool_id, about.chain_id, about.ledger) != here:
        raise OtherBackup(
            f"the backup is of pool {about.pool_id} of the ledger {about.ledger} on chain {about.chain_id}, and this "
            f"configuration is of pool {pool.id} of the ledger {pool.ledger} on chain {pool.chain_id}",
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
        facts = await redis_facts(service.redis.url, service.redis.keys)
        if _numbers(of.redis_version or "") > _numbers(facts.version):
            raise OtherBackup(
                f"the backup is of Redis {of.redis_version}, and this is Redis {facts.version}, which can't read it",
                hint="use the same or a newer version of Redis",
            )
    if of.run != service.run:
        raise OtherBackup(
            f"the backup is of the run {of.run}, and the trainer's settings name {service.run}",
            hint="check `run` under [trainer]",
        )
    if of.bucket != service.bucket:
        raise OtherBackup(
            f"the pool's files were in {_place(of.bucket)}, and the settings name {_place(service.bucket)}",
            hint="check `storage_bucket` under [orchestrator]; files of a bucket are not in the backup",
        )


def _place(bucket: str | None) -> str:
    return "a folder" if bucket is None else f"the bucket {bucket}"


def _numbers(version: str) -> tuple[int, ...]:
    """Returns major and minor number of a Redis version, which determine how it stores values."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _check_room(services: Sequence[Service], verified: Verified) -> None:
    sizes = {part.name: part.bytes for part in verified.parts}
    needed: Mapping[str, tuple[Path | None, int]] = {
        service.name: (
            service.objects or service.state,
            sum(sizes.get(part, 0) for part in PARTS_OF[service.name][-1:]),
        )
        for service in services
    }
    for folder, size in needed.values():
        if folder is None:
            continue
        there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
        if (free := shutil.disk_usage(there).free) < size:
            raise InvalidInput(f"{folder} needs {size} bytes, and {free} are free", hint="make room on that disk")


class _Target:
    """Data of a service, into which a backup is restored."""

    def __init__(self, service: Service, redis: RedisTarget | None) -> None:
        self.service = service
        self._redis = redis

    async def check(self, *, replace: bool) -> None:
        """Checks that no service runs, and that nothing exists which may not be replaced."""
        await self.check_unused()
        if replace or self._redis is None or await self._redis.is_unfinished():
            return
        if not await self._redis.is_empty():
            raise NotEmpty(f"the {self.service.name} has data in this Redis")
        for path in filter(None, (self.service.sealing_key, self._objects)):
            if path.is_file() or (path.is_dir() and any(path.iterdir())):
                raise NotEmpty(f"{path} exists")

    async def check_readable(self, sample: bytes | None) -> None:
        """Checks that this Redis can read the values of the backup."""
        if self._redis is not None and sample is not None:
            await self._redis.check_readable(sample)

    async def check_unused(self) -> None:
        """Checks that no service runs."""
        if self._redis is not None:
            await self._redis.check_unused()

    async def mark(self) -> bool:
        """Marks the data as incomplete; returns whether they were not marked before."""
        return self._redis is not None and await self._redis.mark()

    async def unmark(self) -> None:
        """Removes the mark."""
        if self._redis is not None:
            await self._redis.unmark()

    async def clear(self) -> None:
        """Removes what the backup replaces."""
        if self._redis is not None:
            await self._redis.clear()

    async def write(self, member: Member) -> None:
        """Writes a file of the backup."""
        if self._redis is not None and member.part.endswith("-redis"):
            await self._redis.write(list(decoded(member.content(most=LONGEST_RECORDS))))
        elif member.part == "orchestrator-objects":
            if self._objects is not None:
                _write(self._objects / member.rest, member, root=self._objects, keep=True)
        elif member.rest == "url.secret":
            if self.service.objects is not None:
                _write(self.service.objects / "url.secret", member, root=self.service.objects)
        elif self.service.sealing_key is not None:
            _write(self.service.sealing_key, member, root=self.service.sealing_key.parent)
        else:
            raise OtherBackup(
                "the backup has a key that decrypts secrets of tasks, and the settings have no place for it",
                hint="set secrets_key_file under [orchestrator]",
            )

    async def finish(self) -> None:
        """Checks that no service was started meanwhile, and removes the mark."""
        await self.check_unused()
        await self.unmark()

    @property
    def _objects(self) -> Path | None:
        """Folder of the pool's objects."""
        folder = self.service.objects
        return None if folder is None else folder / "objects" / str(self.service.pool_id)


class _TrainerTarget(_Target):
    """A trainer's state directory, whose lock this process holds."""

    def __init__(self, service: Service, folder: Path) -> None:
        super().__init__(service, None)
        self._folder = folder

    async def check(self, *, replace: bool) -> None:
        if replace or (self._folder / RESTORING_FILE).exists():
            return
        if (found := next(self._replaced(), None)) is not None:
            raise NotEmpty(f"{found} exists")

    async def mark(self) -> bool:
        if (self._folder / RESTORING_FILE).exists():
            return False
        create_atomically(self._folder / RESTORING_FILE, b"")
        return True

    async def unmark(self) -> None:
        (self._folder / RESTORING_FILE).unlink()

    async def clear(self) -> None:
        for path in self._replaced():
            path.unlink()

    async def write(self, member: Member) -> None:
        _write(self._folder / member.rest, member, root=self._folder)

    def _replaced(self) -> Iterator[Path]:
        """Yields the files that a trainer wrote, which a restore removes; files of other names stay."""
        for folder in (self._folder, self._folder / ROLLOUTS_FOLDER):
            if folder.is_dir() and not folder.is_symlink():
                for path in list(folder.iterdir()):
                    if is_state_file(str(path.relative_to(self._folder))) and not path.is_dir():
                        yield path


async def _target(service: Service, stack: AsyncExitStack) -> _Target:
    if service.state is not None:
        stack.enter_context(lock_state(service.state, restoring=True))
        if os.geteuid() == 0:  # the trainer opens the lock file, too
            owner = service.state.stat()
            for path in service.state.glob("*.lock"):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        return _TrainerTarget(service, service.state)
    if service.redis is None:
        return _Target(service, None)
    redis = await stack.enter_async_context(redis_target(service.redis.url, service.redis.keys, service=service.name))
    return _Target(service, redis)


def _sha256(pieces: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def _is_kept(path: Path, size: int) -> bool:
    """Returns whether a file that is named by its SHA-256 is there already, undamaged."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return _sha256(iter(lambda: file.read(PIECE), b"")) == path.name


def _dump_version(value: bytes) -> bytes:
    """Returns the format version of a value that Redis dumped; it is before the checksum at the end."""
    return value[-FOOTER_BYTES:-8]


def _write(path: Path, member: Member, *, root: Path, keep: bool = False) -> None:
    """Writes a file of a backup; it appears when it is complete.

    It is on the disk after `os.sync`. Files and folders get the owner of the folder in which they are made, so that a
    service can use them although root has restored them.

    Args:
        path: The file.
        member: Its content.
        root: Folder of the settings that `path` is below. Folders between must be no links, which could lead elsewhere.
        keep: Keep an existing file whose content has the SHA-256 in its name.

    Raises:
        InvalidInput: A folder between `root` and `path` is a link.
    """
    if linked := [each for each in path.parents if each.is_relative_to(root) and each != root and each.is_symlink()]:
        raise InvalidInput(f"{linked[0]} is a link", hint="make it a folder, then run this again")
    if keep and _is_kept(path, member.size):
        return
    made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = (made[-1].parent if made else path.parent).stat()
    partial = path.with_name(f".{path.name}.part")
    with ExitStack() as stack:
        stack.callback(partial.unlink, missing_ok=True)
        partial.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as out:
            for piece in member.pieces:
                out.write(piece)
        if os.geteuid() == 0:
            for each in (*made, partial):
                os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)
        partial.replace(path)
