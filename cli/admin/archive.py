"""Format of a backup: a tar file that describes itself first and has checksums last.

The first member, `backup.json`, says what the backup is of. Members of the parts follow, named PART/NAME. The last one,
`parts.json`, has size and SHA-256 of every part. The files of a part follow each other in ascending order, so a reader
needs no list of them to detect a name that occurs twice. All members are plain files. `tar` can list and unpack a
backup, but only `muster admin` checks it.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import InvalidInput
from protocol.identifiers import WireAddress
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

ServiceName = Literal["orchestrator", "gateway", "validator", "trainer"]


class BadBackup(InvalidInput):
    """A file is not a complete, undamaged backup."""

    code = "bad-backup"
    default_hint = "use another copy of the backup; nothing was changed"


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
    """What a backup is of."""

    format: int
    pool_id: Annotated[int, Field(ge=1)]
    chain_id: Annotated[int, Field(ge=1)]
    ledger: WireAddress
    """Address of the contract ComputePools."""
    release: Annotated[str, Field(max_length=40)]
    created: datetime
    services: Annotated[tuple[ServiceAbout, ...], Field(min_length=1)]


class Part(_Json):
    """Content of one part of a backup."""

    name: str
    files: int
    bytes: int
    sha256: str
    """SHA-256 of the lines "NAME SIZE SHA-256" of the part's files, in hex."""


class _Parts(_Json):
    parts: tuple[Part, ...]


class Sink(Protocol):
    """Receives the bytes of an archive."""

    def write(self, data: bytes, /) -> object:
        """Writes all of the bytes."""


class Source(Protocol):
    """Yields the bytes of an archive."""

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; fewer only at the end."""


class _Parting:
    """Sums up the parts of an archive, and checks the order of names."""

    def __init__(self) -> None:
        self.found: list[Part] = []
        self._last: tuple[str, ...] = ("",)
        self._files = self._bytes = 0
        self._hash = hashlib.sha256()

    def follows(self, name: str) -> bool:
        """Returns whether a name is allowed after the former one."""
        words = tuple(name.split("/"))
        if words[0] == self._last[0]:
            return words > self._last
        return len(self.found) < _MOST_PARTS and words[0] not in {each.name for each in self.found}

    def add(self, name: str, size: int, sha256: str) -> None:
        """Adds a file to its part, whose name may be a new one."""
        words = tuple(name.split("/"))
        if words[0] != self._last[0]:
            self.end()
            self._files, self._bytes, self._hash = 0, 0, hashlib.sha256()
        self._last = words
        self._files += 1
        self._bytes += size
        self._hash.update(f"{name} {size} {sha256}\n".encode())

    def end(self) -> None:
        """Ends the last part."""
        if self._files:
            part = Part(name=self._last[0], files=self._files, bytes=self._bytes, sha256=self._hash.hexdigest())
            self.found.append(part)


class ArchiveWriter:
    """Writes an archive.

    Args:
        sink: Receives the bytes.
        about: What the backup is of.
    """

    def __init__(self, sink: Sink, about: About) -> None:
        self._sink = sink
        self._parting = _Parting()
        described = about.model_dump_json(indent=2).encode()
        self._write(ABOUT, [described], len(described))

    def add(self, name: str, content: bytes) -> None:
        """Adds a file; names must be in ascending order."""
        self.stream(name, len(content), [content])

    def stream(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        """Adds a file in pieces.

        Raises:
            InvalidInput: The name can't be in a backup, or the pieces have another size than announced.
        """
        if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME or not self._parting.follows(name):
            raise InvalidInput(f"the file {name[:300]!r} can't be in a backup", hint="move it out of that folder")
        self._write(name, pieces, size)

    def finish(self) -> tuple[Part, ...]:
        """Writes the checksums and the end of the archive; returns the parts."""
        self._parting.end()
        parts = tuple(self._parting.found)
        sums = _Parts(parts=parts).model_dump_json(indent=2).encode()
        self._write(PARTS, [sums], len(sums))
        self._sink.write(bytes(2 * _BLOCK))
        return parts

    def _write(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        self._sink.write(_header(name, size))
        written, found = 0, hashlib.sha256()
        for piece in pieces:
            written += len(piece)
            if written > size:
                break
            found.update(piece)
            self._sink.write(piece)
        if written != size:
            raise InvalidInput(
                f"{name} changed its size while it was read: {size} bytes before", hint="make the backup again"
            )
        self._sink.write(bytes(-size % _BLOCK))
        if name not in {ABOUT, PARTS}:
            self._parting.add(name, size, found.hexdigest())


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    # GNU's form has no limit of the size, and USTAR's has room for long names. Files with long names are objects.
    if len(name) <= _LONG:
        return info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


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
        source: The bytes.
        length: Maximum number of bytes that the source has.

    Raises:
        BadBackup: The source does not begin as a backup does.
        NewerFormat: A newer release wrote the backup.
    """

    def __init__(self, source: Source, *, length: int) -> None:
        self._source = source
        self._left = length
        self._parting = _Parting()
        self.parts: tuple[Part, ...] = ()
        """The parts, after `members` has ended."""
        try:
            data = self._first()
        except BadBackup as error:
            raise BadBackup(
                f"this is no backup of `muster admin backup`: {error.detail}", hint="name a file that it wrote"
            ) from error
        self.about = _about(data)

    def members(self) -> Iterator[Member]:
        """Yields the files of all parts; afterwards all checksums are verified.

        Raises:
            BadBackup: The archive is damaged, truncated, or has a file that no backup has.
        """
        while True:
            found = self._header()
            if found is None:
                raise BadBackup(f"the backup ends before its checksums ({PARTS})")
            name, size = found
            if name == PARTS:
                self._finish(self._small(name, size))
                return
            if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
                raise BadBackup(f"a file has the name {name[:300]!r}, which no backup has")
            if not self._parting.follows(name):
                raise BadBackup(f"the file {name} occurs twice, or is not in order")
            found_hash = hashlib.sha256()
            pieces = self._pieces(name, size, found_hash.update)
            yield Member(name, size, pieces)
            for _ in pieces:  # what the caller left
                pass
            self._parting.add(name, size, found_hash.hexdigest())

    def _first(self) -> bytes:
        name, size = self._header() or ("", 0)
        if name != ABOUT:
            raise BadBackup(f"it does not begin with {ABOUT}")
        return self._small(name, size)

    def _finish(self, data: bytes) -> None:
        self._parting.end()
        self.parts = tuple(self._parting.found)
        stated = _parsed(_Parts, data, name=PARTS).parts
        for one in self.parts:
            if one not in stated:
                raise BadBackup(f"the part {one.name} is damaged: its SHA-256 differs from the one in {PARTS}")
        if len(stated) != len(self.parts):
            raise BadBackup(f"the backup lacks a part that {PARTS} names")
        if self._header() is not None or self._read(_BLOCK) != bytes(_BLOCK) or self._source.read(1):
            raise BadBackup("the backup goes on after its end")

    def _header(self) -> tuple[str, int] | None:
        """Returns name and size of the next file; None at the end of the archive."""
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
        return info.name, info.size

    def _small(self, name: str, size: int) -> bytes:
        if size > _MOST_JSON:
            raise BadBackup(f"{name} has {size} bytes, and the limit is {_MOST_JSON}")
        return b"".join(self._pieces(name, size, lambda _: None))

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
        data = self._source.read(size)
        if len(data) != size:
            raise BadBackup("the backup is truncated")
        self._left -= size
        return data


def _about(data: bytes) -> About:
    try:
        stated = json.loads(data)["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadBackup(f"{ABOUT} in the backup can't be read") from error
    check_format(stated, known=FORMAT, what="the backup")
    return _parsed(About, data, name=ABOUT)


def _parsed(kind: type[M], data: bytes, *, name: str) -> M:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise BadBackup(f"{name} in the backup can't be read") from error
