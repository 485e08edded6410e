"""Computes the digest that identifies a policy version.

Seeds, leases and the ledger name a version by this digest.

A version is a folder of files. The digest covers the complete files. It does not depend on how they were transferred:
whole, in blocks, or as a delta.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import InvalidInput
from protocol.identifiers import Digest, digest

MOST_FILES = 4096
"""Maximum number of files in a version. Writers and readers refuse versions with more."""
LONGEST_NAME = 255
"""Maximum length of a file's path inside a version, in characters."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True, order=True)
class VersionFile:
    """One file of a version.

    Args:
        path: Path relative to the version's folder, with `/` as separator; see `check_path`.
        size: Size of the file in bytes.
        sha256: SHA-256 of the file, 64 lower-case hex digits.
    """

    path: str
    size: int
    sha256: str


def check_path(path: str) -> str:
    """Returns the path if a version may contain it; otherwise raises.

    An allowed path has parts of letters, digits and `_.+-`, separated by `/`. No part begins with a dot, a plus or a
    dash.

    Raises:
        InvalidInput: The path is not allowed, for example because it could lead out of the folder.
    """
    parts = path.split("/")
    if len(path) > LONGEST_NAME or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidInput(
            f"{path[:80]!r} is not an allowed path inside a version",
            hint="each part of the path consists of A-Z a-z 0-9 _ . + - and begins with a letter, a digit or _",
        )
    return path


def version_digest(files: Iterable[VersionFile]) -> Digest:
    """Returns the SHA-256 over a sorted list of the version's files.

    The list has one line `path size sha256` per file, each with a final line feed, sorted by the bytes of the path.

    Raises:
        InvalidInput: There are no files, more than `MOST_FILES`, or two with the same path; or a path, size or hash is
            malformed.
    """
    listed = sorted(files, key=lambda file: file.path.encode())
    if not 0 < len(listed) <= MOST_FILES:
        raise InvalidInput(f"the version has {len(listed)} files", hint=f"a version has 1 to {MOST_FILES} files")
    if len({file.path for file in listed}) != len(listed):
        raise InvalidInput("a path occurs twice in the version")
    for file in listed:
        check_path(file.path)
        if file.size < 0 or not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
            raise InvalidInput(f"the size or SHA-256 of {file.path} is malformed")
    lines = "".join(f"{file.path} {file.size} {file.sha256}\n" for file in listed)
    return digest(hashlib.sha256(lines.encode()).digest())


def folder_files(folder: Path) -> list[VersionFile]:
    """Hashes every file under a folder; returns the files sorted by path.

    Hidden files and folders, with a leading dot, do not belong to a version and are skipped.

    Raises:
        InvalidInput: An entry is neither a regular file nor a folder, or its name is not allowed in a version.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts) or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink() or not path.is_file():
            raise InvalidInput(
                f"{relative} is not a regular file", hint="a version may contain only regular files and folders"
            )
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(VersionFile(check_path(relative.as_posix()), file.tell(), sha256))
    return found
