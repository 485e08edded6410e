"""Source of the newest version: the publisher's announcement on the ledger, not a relay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocol.identifiers import Digest
from shardcast.manifest.manifest import VersionKey


@dataclass(frozen=True, slots=True)
class AnnouncedVersion:
    """A version as its publisher announced it."""

    version: int
    attempt: int
    digest: Digest

    @property
    def key(self) -> VersionKey:
        """Returns the version and its attempt."""
        return VersionKey(self.version, self.attempt)


class Announcements(Protocol):
    """Source of announcements: the ledger, where one is configured."""

    async def latest(self) -> AnnouncedVersion | None:
        """Returns the newest announced version of the run; None before the first."""
        ...
