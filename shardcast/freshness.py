"""Interface to the announcements of versions on the ledger.

With the announcements, a reader can determine the newest version without trusting a relay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocol.identifiers import Digest
from shardcast.manifest.manifest import VersionKey


@dataclass(frozen=True, slots=True)
class AnnouncedVersion:
    """A version that the publisher announced on the ledger."""

    version: int
    attempt: int
    digest: Digest

    @property
    def key(self) -> VersionKey:
        """Returns the number of the version and of the attempt at it."""
        return VersionKey(self.version, self.attempt)


class Announcements(Protocol):
    """Reader of the announced versions of one run, normally from the ledger."""

    async def latest(self) -> AnnouncedVersion | None:
        """Returns the newest announced version of the run; None before the first announcement."""
        ...
