"""Entity tags in the headers `If-Match` and `If-None-Match` (RFC 9110, sections 8.8.3 and 13.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.errors import InvalidInput

MOST_CHARACTERS = 1000
"""Maximum length of such a header."""

_TAG = r'(?:W/)?"[\x21\x23-\x7e]*"'
_LIST = re.compile(rf"{_TAG}(?:[ \t]*,[ \t]*{_TAG})*")


@dataclass(frozen=True, slots=True)
class EntityTags:
    """The entity tags that a precondition names."""

    tags: tuple[str, ...]
    """Tags with their quotes, weak ones with `W/`; only `*` for any version."""

    @classmethod
    def parse(cls, value: str | None, *, header: str) -> EntityTags | None:
        """Parses the value of a header; returns None if the request does not have it.

        Raises:
            InvalidInput: The value is neither `*` nor a list of entity tags, or too long.
        """
        if value is None:
            return None
        value = value.strip()
        if value == "*":
            return cls(("*",))
        if len(value) > MOST_CHARACTERS or not _LIST.fullmatch(value):
            raise InvalidInput(
                f"{header} is neither * nor a list of entity tags of at most {MOST_CHARACTERS} characters",
                hint="send the ETag of an earlier answer, with its quotes",
                code="malformed-header",
            )
        return cls(tuple(re.findall(_TAG, value)))

    @property
    def any(self) -> bool:
        """Returns whether every version matches."""
        return self.tags == ("*",)

    def includes(self, tag: str) -> bool:
        """Returns whether a tag is among these by weak comparison, as `If-None-Match` needs it."""
        return self.any or tag.removeprefix("W/") in {each.removeprefix("W/") for each in self.tags}
