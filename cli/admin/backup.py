"""Writes a backup of a pool's services, also while they work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import IO

from cli.admin.archive import FORMAT, About, ArchiveWriter, Part, ServiceAbout, ServiceName
from cli.admin.encryption import EncryptingSink
from cli.admin.records import RedisPlace, copied, redis_facts
from cli.admin.services import Pool, Service
from cli.admin.verify import MOST_KEY_BYTES, is_object
from protocol.errors import InvalidInput, NotFound
from protocol.redis.snapshot import pattern
from protocol.runtime.clock import SystemClock
from protocol.runtime.files import atomic_file, read_limited
from protocol.versions import release
from trainer.run.state.snapshot import open_snapshot

STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True)
class Written:
    """A finished backup."""

    path: Path
    about: About
    parts: tuple[Part, ...]


async def make_backup(pool: Pool, to: Path, *, passphrase: bytes | None = None) -> Written:
    """Writes a backup, under another name until it is complete.

    Args:
        pool: The services.
        to: A new file; a folder, in which a file with the time in its name is made; or `-` for standard output.
        passphrase: Encrypts the backup.

    Raises:
        InvalidInput: The file exists, or a part can't be backed up.
        StoreUnavailable: Redis does not answer.
        OSError: The disk is full, or the write failed; no file is left.
    """
    about = await _about(pool)
    path = _path(to, about, encrypted=passphrase is not None)
    with _opened(path) as file:
        encrypted = None if passphrase is None else EncryptingSink(file.write, passphrase)
        archive = ArchiveWriter(file.write if encrypted is None else encrypted.write, about)
        for service in pool.services:
            await _add(service, archive)
        parts = archive.finish()
        if encrypted is not None:
            encrypted.finish()
    return Written(path, about, parts)


async def _about(pool: Pool) -> About:
    services = []
    for one in pool.services:
        schema, version = None, None
        if one.redis is not None:
            facts = await redis_facts(one.redis)
            schema, version = facts.schema or 1, facts.version
        services.append(
            ServiceAbout(name=one.name, schema_version=schema, redis_version=version, run=one.run, bucket=one.bucket)
        )
    return About(
        format=FORMAT,
        **pool.identity._asdict(),
        release=release(),
        created=SystemClock().now().astimezone(UTC).replace(microsecond=0),
        services=tuple(services),
    )


def _path(to: Path, about: About, *, encrypted: bool) -> Path:
    if to == STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise InvalidInput(
                "a backup has secrets and is not printed at a terminal", hint="name a file, or use a pipe"
            )
        return to
    if to.is_dir():
        to /= f"muster-pool-{about.pool_id}-{about.created:%Y%m%dT%H%M%SZ}.tar" + (".enc" if encrypted else "")
    if to.exists():
        raise InvalidInput(f"{to} exists already", hint="name a file that does not exist, or a folder")
    if not to.parent.is_dir():
        raise NotFound(f"there is no folder {to.parent}", hint="make it, with mode 0700: backups have secrets")
    return to


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if path == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with atomic_file(path, mode=0o600) as file:
        yield file


async def _add(service: Service, archive: ArchiveWriter) -> None:
    """Adds the parts of a service, in the order of `PARTS_OF`."""
    if service.redis is not None:
        await _add_redis(service.name, service.redis, archive)
    for name, path in service.key_files.items():
        if name == "sealing.key" or path.exists():  # the first download of a file makes url.secret
            archive.add(f"{service.name}-secrets/{name}", read_key(path))
    if service.objects is not None:
        for name, path in _files(service.objects):
            try:
                file = path.open("rb")
            except FileNotFoundError:  # the orchestrator removes files that no work names
                continue
            with file:
                archive.add(f"{service.name}-objects/{name}", file)
    if service.state is not None:
        with open_snapshot(service.state) as snapshot:
            for name, content in sorted(snapshot.files.items(), key=lambda item: item[0].split("/")):
                archive.add(f"{service.name}-state/{name}", content)


async def _add_redis(service: ServiceName, place: RedisPlace, archive: ArchiveWriter) -> None:
    number = 0
    async for records in copied(place):
        number += 1
        archive.add(f"{service}-redis/{number:08d}", records)
    if number == 0:
        raise InvalidInput(
            f"Redis has no data of the {service} at {pattern(place.keys)}",
            hint="check redis_url in its settings; if it never ran, name the other services by --service",
        )


def read_key(path: Path) -> bytes:
    """Returns the content of a file with a key.

    Raises:
        InvalidInput: The file can't be read, or is too long.
    """
    hint = "run this as the user of the orchestrator, and check secrets_key_file in its settings"
    return read_limited(path, most=MOST_KEY_BYTES, what="the key file", hint=hint)


def _files(folder: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yields names and paths of the stored files of a pool, in the order that a backup needs."""
    try:
        with os.scandir(folder) as entries:
            found: Sequence[os.DirEntry[str]] = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in found:
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), f"{name}/")
        elif entry.is_file(follow_symlinks=False) and is_object(name):
            yield name, Path(entry.path)


def objects_bytes(folder: Path) -> int:
    """Returns the size of the stored files of a pool."""
    total = 0
    for _, path in _files(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
