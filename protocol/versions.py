"""Protocol versions of this release, and the error for a peer of another version."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol import __version__
from protocol.errors import InvalidInput, UpgradeRequired

VERSION_HEADER = "X-Muster-Version"

_RANGE = re.compile(r"([1-9][0-9]{0,3})(?:-([1-9][0-9]{0,3}))?")


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Protocol versions from `oldest` to `newest` that a client or service supports; `1-2` on the wire, or `1`."""

    oldest: int
    newest: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Reads the header's value.

        Raises:
            InvalidInput: The text is not a range of versions.
        """
        match = _RANGE.fullmatch(text)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InvalidInput(
                f"{VERSION_HEADER} is not a range of versions: {text[:20]!r}",
                hint="write 1, or 1-2",
                code="malformed-header",
            )
        return cls(int(match[1]), int(match[2] or match[1]))

    def agree(self, theirs: VersionRange) -> int:
        """Returns the newest version that both ends support.

        Raises:
            UpgradeRequired: There is no common version; the message says which end is older.
        """
        newest = min(self.newest, theirs.newest)
        if newest >= max(self.oldest, theirs.oldest):
            return newest
        if theirs.newest < self.oldest:
            raise UpgradeRequired(
                f"you speak version {theirs} of the protocol; this service needs {self.oldest} or newer",
                hint="upgrade: muster worker upgrade",
            )
        raise UpgradeRequired(
            f"you speak version {theirs} of the protocol; this service is older and speaks {self}",
            hint="ask the service's operator to upgrade, or install an older release",
        )

    def __str__(self) -> str:
        return str(self.oldest) if self.oldest == self.newest else f"{self.oldest}-{self.newest}"


SPOKEN = VersionRange(1, 1)
"""Protocol versions of this release. A release that no longer understands older requests has a higher `oldest`."""


def release() -> str:
    """The version of this release of Muster."""
    return __version__
