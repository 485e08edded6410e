"""Protocol versions of this release, and the error for a peer without a common version."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol import __version__
from protocol.errors import InvalidInput, UpgradeRequired

VERSION_HEADER = "X-Muster-Version"
"""HTTP header in which clients state the protocol versions that they support."""

AGREED_HEADER = "X-Muster-Agreed-Version"
"""HTTP header in which services state the protocol version that the answer has."""

_RANGE = re.compile(r"([1-9][0-9]{0,3})(?:-([1-9][0-9]{0,3}))?")


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Range of protocol versions that a client or service supports, bounds included.

    On the wire it is written `1-2`, or `1` for a single version.
    """

    oldest: int
    newest: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Parses the value of the version header.

        Raises:
            InvalidInput: The text is not a range of versions.
        """
        match = _RANGE.fullmatch(text)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InvalidInput(
                f"{VERSION_HEADER} is not a range of versions: {text[:20]!r}",
                hint="write one version, as in 1, or a range, as in 1-2",
                code="malformed-header",
            )
        return cls(int(match[1]), int(match[2] or match[1]))

    def agree(self, theirs: VersionRange) -> int:
        """Returns the newest version that both ends support.

        Raises:
            UpgradeRequired: There is no common version. The message says which end is older.
        """
        newest = min(self.newest, theirs.newest)
        if newest >= max(self.oldest, theirs.oldest):
            return newest
        if theirs.newest < self.oldest:
            raise UpgradeRequired(
                f"your client supports protocol version {theirs}; this service needs {self.oldest} or newer",
                hint="upgrade: muster worker upgrade",
            )
        raise UpgradeRequired(
            f"your client supports protocol version {theirs}; this service is older and supports only {self}",
            hint="ask the service's operator to upgrade, or install an older release",
        )

    def __str__(self) -> str:
        return str(self.oldest) if self.oldest == self.newest else f"{self.oldest}-{self.newest}"


SPOKEN = VersionRange(1, 1)
"""Protocol versions of this release. A release that no longer understands older requests raises `oldest`."""


def release() -> str:
    """Returns the version of this release of Muster."""
    return __version__
