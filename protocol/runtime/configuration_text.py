"""Reads a configuration file: its tables, and the line on which an entry stands."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from protocol.errors import InvalidInput, NotFound

MOST_FILE_BYTES = 1024 * 1024
"""Maximum size of a configuration file, in bytes."""
TABLES = (
    "chain",
    "keys",
    "pool",
    "discovery",
    "orchestrator",
    "gateway",
    "worker",
    "validator",
    "trainer",
    "sandbox",
    "tracing",
)
"""Tables that a configuration file may have. Each command reads some of them and ignores the others."""

_MOST_INDEXED = 64 * 1024
"""Maximum length of a file in which lines are looked up; the look-up takes quadratic time."""
_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?")
_ENTRY = re.compile(r"""\s*(["']?)([A-Za-z0-9_-]+)\1\s*([=.])""")


class InvalidSetting(InvalidInput):
    """A setting is unknown or its value is invalid."""

    code = "invalid-setting"


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """A configuration file that was read.

    Args:
        path: The file.
        text: Its text.
        content: Its parsed content.
    """

    path: Path
    text: str
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, *, own: str) -> ConfigurationFile:
        """Reads a file and checks the names of its tables.

        Args:
            path: The file.
            own: Name of the table that the caller reads, which is allowed beside `TABLES`.

        Raises:
            NotFound: The file does not exist.
            InvalidSetting: The file can't be read, is too long or not TOML, or has an unknown table.
        """
        try:
            with path.open("rb") as source:
                data = source.read(MOST_FILE_BYTES + 1)
        except FileNotFoundError as error:
            raise NotFound(f"the settings file {path} does not exist") from error
        except OSError as error:
            raise InvalidSetting(f"can't read {path}: {error.strerror}", hint="check its permissions") from error
        if len(data) > MOST_FILE_BYTES:
            raise InvalidSetting(f"{path} is longer than {MOST_FILE_BYTES} bytes", hint="this is no configuration file")
        try:
            text = data.decode()
            content = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidSetting(f"{path} is not TOML: {error}", hint="correct that line and try again") from None
        found = cls(path, text, content)
        found._check_tables({*TABLES, own.partition(".")[0]})
        return found

    def table(self, name: str) -> Mapping[str, Any]:
        """Returns a table, for example `worker` or `shardcast.relay`; empty if the file has none.

        Raises:
            InvalidSetting: The entry with this name is not a table.
        """
        content: Any = self.content
        walked: list[str] = []
        for part in name.split("."):
            walked.append(part)
            content = content.get(part, {})
            if not isinstance(content, dict):
                raise InvalidSetting(f"{self.path}: {'.'.join(walked)} is not a table", hint=f"write [{name}]")
        table: Mapping[str, Any] = content
        return table

    def place(self, path: Sequence[str]) -> str:
        """Returns where an entry stands, as `muster.toml:7`; the file alone if the line is not found."""
        line = self._line(tuple(path))
        return str(self.path) if line is None else f"{self.path}:{line}"

    def _line(self, path: tuple[str, ...]) -> int | None:
        """Returns the number of the line with the entry, or of the table that contains it.

        An entry can be written as `[a.b]` with `c = …`, `[a]` with `b.c = …`, and so on. The first line that names the
        longest part of the path counts. A header that names only the outermost table does not.
        """
        best, found = min(2, len(path)) - 1, None
        for names, number in _entries(self.text):
            depth = len(names) if path[: len(names)] == names else len(path) if names[: len(path)] == path else 0
            if depth > best:
                best, found = depth, number
        return found

    def _check_tables(self, allowed: Collection[str]) -> None:
        for name, value in self.content.items():
            if name not in allowed:
                close = nearest(name, allowed)
                what = "table" if isinstance(value, dict) else "setting outside of a table"
                raise InvalidSetting(
                    f"{self.place((name,))}: muster reads no {what} {name}",
                    hint=f"did you mean [{close}]?" if close else f"the tables are {', '.join(sorted(allowed))}",
                )
            if not isinstance(value, dict):
                raise InvalidSetting(f"{self.path}: {name} is not a table", hint=f"write [{name}]")


def nearest(name: str, allowed: Collection[str]) -> str | None:
    """Returns the allowed name that is most like a misspelt one; None if none is like it."""
    return next(iter(difflib.get_close_matches(name, sorted(allowed), n=1, cutoff=0.5)), None)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


@lru_cache(maxsize=4)
def _entries(text: str) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Returns the full name and the line number of each table header and entry; empty for a very long file."""
    found: list[tuple[tuple[str, ...], int]] = []
    if len(text) > _MOST_INDEXED:
        return ()
    table: tuple[str, ...] = ()
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        header = _HEADER.fullmatch(line.rstrip("\r\n"))
        if (header is None and not _ENTRY.match(line)) or _begins_in_a_value("".join(lines[:number])):
            continue
        if header is not None:
            table = _names(header[1])
        found.append((table if header is not None else (*table, *_names(line.partition("=")[0])), number + 1))
    return tuple(found)


def _begins_in_a_value(before: str) -> bool:
    """Returns whether a line that follows this text is inside a string or an array of several lines."""
    try:
        tomllib.loads(before)
    except tomllib.TOMLDecodeError:
        return True
    return False
