"""Writes a backup of a pool's services, also while they work."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import IO

from cli.admin.archive import About, ArchiveWriter, Part, ServiceAbout, Sink
from cli.admin.encryption import EncryptingSink
from cli.admin.redis_copy import copied, redis_facts
from cli.admin.services import Pool, Service
from cli.admin.trainer_copy import open_copy, stream
from protocol.errors import InvalidInput, NotFound
from protocol.runtime.clock import SystemClock
from protocol.runtime.files import atomic_file
from protocol.versions import release

_OBJECT = re.compile(r"(audits/)?0x[0-9a-fA-F]{40}/([0-9a-f]{2})/\2[0-9a-f]{62}")
MOST_KEY_BYTES = 4096
"""Maximum size of a sealing key's file and of `url.secret`, in bytes."""
STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True)
class Written:
    """A finished backup.

    Args:
        path: The file; `-` for standard output.
        about: What it is of.
        parts: Its parts.
    """

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
        sink: Sink = file
        if passphrase is not None:
            sink = EncryptingSink(file, passphrase)
        archive = ArchiveWriter(sink, about)
        for service in pool.services:
            await _add(service, archive)
        parts = archive.finish()
        if isinstance(sink, EncryptingSink):
            sink.finish()
    return Written(path, about, parts)


async def _about(pool: Pool) -> About:
    services = []
    for one in pool.services:
        schema, version = None, None
        if one.redis is not None:
            facts = await redis_facts(one.redis.url, one.redis.keys)
            schema, version = facts.schema or 1, facts.version
        services.append(
            ServiceAbout(name=one.name, schema_version=schema, redis_version=version, run=one.run, bucket=one.bucket)
        )
    return About(
        format=1,
        pool_id=pool.id,
        chain_id=pool.chain_id,
        ledger=pool.ledger,
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
    if service.redis is not None:
        number = 0
        async for records in copied(service.redis.url, service.redis.keys):
            number += 1
            archive.add(f"{service.name}-redis/{number:08d}", records)
        if number == 0:
            raise InvalidInput(
                f"Redis has no data of the {service.name} at {service.redis.keys.prefix}*",
                hint="check redis_url in its settings; if it never ran, name the other services by --service",
            )
    if service.name == "orchestrator":
        _add_secrets(service, archive)
        if service.objects is not None:
            for name, path in _files(service.objects / "objects" / str(service.pool_id)):
                if not is_object(name):
                    continue
                try:
                    file = path.open("rb")
                except FileNotFoundError:  # the orchestrator removes files that no work names
                    continue
                with file:
                    stream(archive, f"orchestrator-objects/{name}", file)
    if service.state is not None:
        with open_copy(service.state) as copy:
            copy.write(archive)


def _add_secrets(service: Service, archive: ArchiveWriter) -> None:
    secrets = {"sealing.key": service.sealing_key}
    if service.objects is not None:
        secrets["url.secret"] = service.objects / "url.secret"
    for name, path in secrets.items():
        if path is None or (name == "url.secret" and not path.exists()):
            continue
        archive.add(f"orchestrator-secrets/{name}", read_key(path))


def read_key(path: Path) -> bytes:
    """Returns the content of a file with a key.

    Raises:
        InvalidInput: The file can't be read, or is too long.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_KEY_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"the key file {path} can't be read: {error.strerror}",
            hint="run this as the user of the orchestrator, and check secrets_key_file in its settings",
        ) from error
    if len(data) > MOST_KEY_BYTES:
        raise InvalidInput(f"{path} has more than {MOST_KEY_BYTES} bytes", hint="this is no key file")
    return data


def is_object(name: str) -> bool:
    """Returns whether a path below a pool's folder is that of a stored file."""
    return _OBJECT.fullmatch(name) is not None


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the files below a folder, in the order that a backup needs; other kinds of files are left out."""
    try:
        with os.scandir(folder) as entries:
            found: Sequence[os.DirEntry[str]] = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            for name, path in _files(Path(entry.path)):
                yield f"{entry.name}/{name}", path
        elif entry.is_file(follow_symlinks=False):
            yield entry.name, Path(entry.path)


def bytes_below(folder: Path) -> int:
    """Returns the size of all files below a folder."""
    total = 0
    for _, path in _files(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
