"""Format of a backup: a tar file that describes itself first and has checksums last.

The first member, `backup.json`, says what the backup is of. Members of the parts follow, named PART/NAME. The last one,
`parts.json`, has size and SHA-256 of every part. The files of a part follow each other in ascending order, so a reader
needs no list of them to detect a name that occurs twice. All members are plain files. `tar` can list and unpack a
backup, but only `muster admin` checks it.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import IO, Annotated, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from protocol.errors import InvalidInput
from protocol.identifiers import Address, WireAddress
from protocol.runtime.files import check_format

FORMAT = 1
"""Version of the format."""
PIECE = 1 << 20
"""Bytes that are read, hashed and written at a time."""
LONGEST_NAME = 250
"""Maximum length of a member's name; tar's own limit without extensions is 255."""
ABOUT, PARTS = "backup.json", "parts.json"

_BLOCK = 512
_MOST_JSON = 1 << 20
_MOST_PARTS = 16
_NAME = re.compile(r"[a-z][a-z-]{0,40}(/[A-Za-z0-9][A-Za-z0-9._-]*)+")
_LONG = 100
"""Longest name without tar's second field for names."""

M = TypeVar("M", bound=BaseModel)


class ServiceName(StrEnum):
    """A service with state, in the order in which a backup has them.

    A trainer may be newer than the orchestrator, and an orchestrator's files newer than its Redis, but not the other
    way round.
    """

    ORCHESTRATOR = "orchestrator"
    GATEWAY = "gateway"
    VALIDATOR = "validator"
    TRAINER = "trainer"


class BadBackup(InvalidInput):
    """A file is not a complete, undamaged backup."""

    code = "bad-backup"
    default_hint = "use another copy of the backup; nothing was changed"


class PoolIdentity(NamedTuple):
    """A pool among all pools of all chains."""

    pool_id: int
    ledger: Address
    """Address of the contract ComputePools."""
    chain_id: int

    def __str__(self) -> str:
        return f"pool {self.pool_id} of the ledger {self.ledger} on chain {self.chain_id}"


class _Json(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServiceAbout(_Json):
    """A service whose state is in a backup."""

    name: ServiceName
    schema_version: Annotated[int, Field(ge=1)] | None = None
    """Schema version of its data in Redis; None if it uses no Redis."""
    redis_version: Annotated[str, Field(max_length=40)] | None = None
    run: Annotated[str, Field(max_length=100)] | None = None
    """Name of a trainer's run."""
    bucket: Annotated[str, Field(max_length=255)] | None = None
    """Bucket with the pool's files, which are not in the backup then."""


class About(_Json):
    """Description of a backup: its pool, its services and the release that made it."""

    format: Annotated[
        int, Field(ge=1), BeforeValidator(lambda stated: check_format(stated, known=FORMAT, what="the backup"))
    ]
    pool_id: Annotated[int, Field(ge=1)]
    chain_id: Annotated[int, Field(ge=1)]
    ledger: WireAddress
    """Address of the contract ComputePools."""
    release: Annotated[str, Field(max_length=40)]
    created: datetime
    services: Annotated[tuple[ServiceAbout, ...], Field(min_length=1)]

    @property
    def pool(self) -> PoolIdentity:
        """The pool."""
        return PoolIdentity(self.pool_id, self.ledger, self.chain_id)


class Part(_Json):
    """Content of one part of a backup."""

    name: str
    files: int
    bytes: int
    sha256: str
    """SHA-256 of the lines "NAME SIZE SHA-256" of the part's files, in hex."""


class _Parts(_Json):
    parts: tuple[Part, ...]


class _PartSums:
    """Checks the names of an archive's files, which come in order, and sums up its parts."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._last: tuple[str, ...] = ("",)
        self._hash = hashlib.sha256()

    def objection(self, name: str) -> str:
        """Returns why a file of this name can't come next; empty if it can."""
        if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            return "no file of a backup has such a name"
        words = tuple(name.split("/"))
        if words[0] != self._last[0]:
            fits = len(self.parts) < _MOST_PARTS and words[0] not in {each.name for each in self.parts}
        else:
            fits = words > self._last
        return "" if fits else "it occurs twice, or is not in order"

    def add(self, name: str, size: int, sha256: str) -> None:
        """Adds a file to its part, which may be a new one."""
        words = tuple(name.split("/"))
        if not self.parts or words[0] != self._last[0]:
            self.parts.append(Part(name=words[0], files=0, bytes=0, sha256=""))
            self._hash = hashlib.sha256()
        self._last = words
        self._hash.update(f"{name} {size} {sha256}\n".encode())
        part = self.parts[-1]
        self.parts[-1] = Part(
            name=part.name, files=part.files + 1, bytes=part.bytes + size, sha256=self._hash.hexdigest()
        )


class ArchiveWriter:
    """Writes an archive.

    Args:
        out: Function that writes bytes.
        about: Description of the backup.
    """

    def __init__(self, out: Callable[[bytes], object], about: About) -> None:
        self._out = out
        self._sums = _PartSums()
        described = about.model_dump_json(indent=2).encode()
        self._write(ABOUT, [described], len(described))

    def add(self, name: str, content: bytes | IO[bytes]) -> None:
        """Adds a file, from its bytes or an open file; names must be in ascending order.

        Raises:
            InvalidInput: The name can't be in a backup, or the open file changes its size.
        """
        if objection := self._sums.objection(name):
            raise InvalidInput(
                f"the file {name[:300]!r} can't be in a backup: {objection}", hint="move it out of that folder"
            )
        if isinstance(content, bytes):
            self._write(name, [content], len(content))
        else:
            self._write(name, iter(lambda: content.read(PIECE), b""), os.fstat(content.fileno()).st_size)

    def finish(self) -> tuple[Part, ...]:
        """Writes the checksums and the end of the archive; returns the parts."""
        parts = tuple(self._sums.parts)
        sums = _Parts(parts=parts).model_dump_json(indent=2).encode()
        self._write(PARTS, [sums], len(sums))
        self._out(bytes(2 * _BLOCK))
        return parts

    def _write(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        self._out(_header(name, size))
        written, found = 0, hashlib.sha256()
        for piece in pieces:
            written += len(piece)
            if written > size:
                break
            found.update(piece)
            self._out(piece)
        if written != size:
            raise InvalidInput(
                f"{name} changed its size while it was read: {size} bytes before", hint="make the backup again"
            )
        self._out(bytes(-size % _BLOCK))
        if name not in {ABOUT, PARTS}:
            self._sums.add(name, size, found.hexdigest())


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    # GNU's form has no limit of the size, and USTAR's has room for long names. Files with long names are objects.
    return info.tobuf(tarfile.GNU_FORMAT if len(name) <= _LONG else tarfile.USTAR_FORMAT, "ascii", "strict")


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive.

    Args:
        name: Its name: the part, and path components that begin with a letter or digit.
        size: Its size in bytes.
        pieces: Its content, which can be read once.
    """

    name: str
    size: int
    pieces: Iterator[bytes]

    @property
    def part(self) -> str:
        """Name of the archive's part that the file belongs to, such as `orchestrator-redis`."""
        return self.name.partition("/")[0]

    @property
    def rest(self) -> str:
        """Path of the file within its part."""
        return self.name.partition("/")[2]

    def content(self, *, most: int) -> bytes:
        """Returns the whole content.

        Raises:
            BadBackup: It has more than `most` bytes.
        """
        if self.size > most:
            raise BadBackup(f"{self.name} has {self.size} bytes, and the limit is {most}")
        return b"".join(self.pieces)


class ArchiveReader:
    """Reads an archive from its beginning, and trusts nothing in it.

    Args:
        take: Function that reads bytes; it returns fewer than asked for only at the end.
        length: Maximum number of bytes of the archive.

    Raises:
        BadBackup: It does not begin as a backup does.
        NewerFormat: A newer release wrote the backup.
    """

    def __init__(self, take: Callable[[int], bytes], *, length: int) -> None:
        self._take = take
        self._left = length
        self._sums = _PartSums()
        self.parts: tuple[Part, ...] = ()
        """The parts, after `members` has ended."""
        try:
            data = self._first()
        except BadBackup as error:
            raise BadBackup(
                f"this is no backup of `muster admin backup`: {error.detail}", hint="name a file that it wrote"
            ) from error
        self.about = _parsed(About, data, name=ABOUT)

    def members(self) -> Iterator[Member]:
        """Yields the files of all parts; afterwards all checksums are verified.

        Raises:
            BadBackup: The archive is damaged, truncated, or has a file that no backup has.
        """
        while True:
            found_hash = hashlib.sha256()
            member = self._next(found_hash.update)
            if member is None:
                raise BadBackup(f"the backup ends before its checksums ({PARTS})")
            if member.name == PARTS:
                self._finish(member.content(most=_MOST_JSON))
                return
            if objection := self._sums.objection(member.name):
                raise BadBackup(f"the file {member.name[:300]!r} can't be in a backup: {objection}")
            yield member
            for _ in member.pieces:  # that the caller did not read
                pass
            self._sums.add(member.name, member.size, found_hash.hexdigest())

    def _first(self) -> bytes:
        member = self._next()
        if member is None or member.name != ABOUT:
            raise BadBackup(f"it does not begin with {ABOUT}")
        return member.content(most=_MOST_JSON)

    def _finish(self, data: bytes) -> None:
        self.parts = tuple(self._sums.parts)
        stated = _parsed(_Parts, data, name=PARTS).parts
        for one in self.parts:
            if one not in stated:
                raise BadBackup(f"the part {one.name} is damaged: its SHA-256 differs from the one in {PARTS}")
        if len(stated) != len(self.parts):
            raise BadBackup(f"the backup lacks a part that {PARTS} names")
        if self._next() is not None or self._read(_BLOCK) != bytes(_BLOCK) or self._take(1):
            raise BadBackup("the backup goes on after its end")

    def _next(self, update: Callable[[bytes], object] = len) -> Member | None:
        """Reads the header of the next file; returns None at the end of the archive.

        Args:
            update: Is called with each piece of the content that is read.
        """
        block = self._read(_BLOCK)
        if block == bytes(_BLOCK):
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise BadBackup(f"the header of a file is damaged: {error}") from error
        if info.type != tarfile.REGTYPE or info.linkname:
            raise BadBackup(f"{info.name[:300]!r} is not a plain file")
        if not 0 <= info.size <= self._left:
            raise BadBackup(f"{info.name[:300]!r} claims {info.size} bytes, and {self._left} are left in the file")
        return Member(info.name, info.size, self._pieces(info.name, info.size, update))

    def _pieces(self, name: str, size: int, update: Callable[[bytes], object]) -> Iterator[bytes]:
        left = size
        while left:
            piece = self._read(min(left, PIECE))
            left -= len(piece)
            update(piece)
            yield piece
        if any(self._read(-size % _BLOCK)):
            raise BadBackup(f"the bytes after {name} are damaged")

    def _read(self, size: int) -> bytes:
        data = self._take(size)
        if len(data) != size:
            raise BadBackup("the backup is truncated")
        self._left -= size
        return data


def _parsed(kind: type[M], data: bytes, *, name: str) -> M:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise BadBackup(f"{name} in the backup can't be read") from error
