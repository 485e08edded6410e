"""Verifies a backup, which needs no settings: reads the whole file, and knows which files each part may have."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cli.admin.archive import About, ArchiveReader, BadBackup, Member, Part, ServiceName
from cli.admin.encryption import MAGIC, DecryptingSource
from cli.admin.records import LONGEST_RECORDS, decoded
from protocol.errors import InvalidInput
from trainer.run.state.snapshot import is_state_file

PARTS_OF: Mapping[ServiceName, tuple[str, ...]] = {
    ServiceName.ORCHESTRATOR: ("orchestrator-redis", "orchestrator-secrets", "orchestrator-objects"),
    ServiceName.GATEWAY: ("gateway-redis",),
    ServiceName.VALIDATOR: ("validator-redis",),
    ServiceName.TRAINER: ("trainer-state",),
}
"""Parts of each service in a backup. The first one is in every backup of the service, the last one has its files."""
KEY_NAMES = frozenset({"sealing.key", "url.secret"})
MOST_KEY_BYTES = 4096
"""Maximum size of a key's file, in bytes."""

_OBJECT = re.compile(r"(audits/)?0x[0-9a-fA-F]{40}/([0-9a-f]{2})/\2[0-9a-f]{62}")
_FOOTER_BYTES = 10
"""Bytes at the end of a value that Redis dumped: format version and checksum."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A complete and undamaged backup."""

    about: About
    parts: tuple[Part, ...]
    samples: Mapping[str, bytes]
    """One value of each part of Redis, by the part's name."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Opens the file of a backup, for all reads of one command.

    Raises:
        InvalidInput: There is no such file, or it is no plain file.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {error.strerror}", hint="name the file of a backup") from error
    with file:
        if not file.seekable():
            raise InvalidInput(f"{path} can't be read twice", hint="copy it into a file first")
        yield file


def begin(file: IO[bytes], passphrase: bytes | None) -> ArchiveReader:
    """Begins to read a backup.

    Raises:
        InvalidInput: It is encrypted, and there is no passphrase; or the other way round.
        BadBackup: It is no backup.
    """
    length = os.fstat(file.fileno()).st_size
    file.seek(0)
    encrypted = file.read(len(MAGIC)) == MAGIC
    if not encrypted:
        if passphrase is not None:
            # Otherwise the command would accept any unencrypted file that somebody put in place of the backup.
            raise InvalidInput(
                "the backup is not encrypted", hint="leave out --passphrase-file if that is as you expect"
            )
        file.seek(0)
        return ArchiveReader(file.read, length=length)
    if passphrase is None:
        raise InvalidInput("the backup is encrypted", hint="name the file with its passphrase: --passphrase-file FILE")
    return ArchiveReader(DecryptingSource(file.read, passphrase).read, length=length)


def verify(file: IO[bytes], passphrase: bytes | None) -> Verified:
    """Reads a whole backup and checks everything in it; writes nothing.

    Raises:
        BadBackup: It is damaged, truncated, or has something that no backup has.
        NewerFormat: A newer release wrote it.
    """
    archive = begin(file, passphrase)
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
    service, _, kind = member.part.partition("-")
    allowed = {"secrets": KEY_NAMES.__contains__, "objects": is_object, "state": is_state_file}
    if kind in allowed and not allowed[kind](member.rest):
        raise BadBackup(f"{member.name} is no file of the state of a {service}")
    match kind:
        case "redis":
            for record in decoded(member.content(most=LONGEST_RECORDS)):
                if record.value:  # otherwise the key was deleted while the backup was made
                    sample = samples.setdefault(member.part, record.value)
                    if len(record.value) < _FOOTER_BYTES or _dump_version(record.value) != _dump_version(sample):
                        raise BadBackup(f"{member.name} has a value that Redis did not write")
        case "secrets":
            member.content(most=MOST_KEY_BYTES)
        case "objects":
            found = hashlib.sha256()
            for piece in member.pieces:
                found.update(piece)
            if found.hexdigest() != member.rest.rpartition("/")[2]:
                raise BadBackup(f"the content of {member.name} does not have the SHA-256 in its name")


def is_object(name: str) -> bool:
    """Returns whether a path below a pool's folder is that of a stored file."""
    return _OBJECT.fullmatch(name) is not None


def _dump_version(value: bytes) -> bytes:
    """Returns the format version of a value that Redis dumped; it is before the checksum at the end."""
    return value[-_FOOTER_BYTES:-8]
