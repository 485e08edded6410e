"""Errors of checkpoint downloads, and their meaning for the caller.

MusterError
├── InvalidInput
│   ├── BadManifest      an extension without the publisher's signature, or one that contradicts earlier extensions
│   └── BadBlock         bytes that differ from those that the publisher signed
├── NotFound
│   └── VersionGone      no peer holds the version: it was removed, or it never existed
├── Conflict
│   └── VersionDropped   the signed blocks contradict the announced content; no peer can repair that
└── Unavailable
    ├── PeerFailed       one peer sent a wrong answer, was too slow, or did not answer
    ├── NoProgress       no peer sent a missing block or extension within the time-out
    ├── StaleRelays      the ledger names a newer version than any relay can prove
    └── VersionDiskFull  there is no room for the version; nothing of it stays on the disk

Callers of `Client` meet `VersionGone`, `VersionDropped`, `NoProgress`, `StaleRelays` and `VersionDiskFull`. A download
handles the other errors itself: it counts the failure and asks another peer.
"""

from __future__ import annotations

from enum import Enum

from protocol.errors import Conflict, InvalidInput, NotFound, Unavailable


class FailureKind(Enum):
    """Kind of a peer's failure; the values label a metric."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    """The peer answered with an error, or with something that was not requested."""
    STALLED = "stalled"
    """The peer stopped sending, or sent too slowly."""
    CUT = "cut"
    """The connection closed in the middle of an answer."""
    BAD_BLOCK = "bad-block"
    BAD_MANIFEST = "bad-manifest"
    GONE = "gone"
    """The peer does not have the version."""


class BadManifest(InvalidInput):
    """An extension that the publisher did not sign, or that contradicts the ones before it."""

    code = "bad-manifest"
    default_hint = "the relay altered it, or it is of another run: use another relay, and check the signer"


class BadBlock(InvalidInput):
    """Bytes that differ from those that the publisher signed."""

    code = "bad-block"
    default_hint = "the relay altered it: use another relay"


class VersionGone(NotFound):
    """No peer holds the version: it was removed, or it never existed."""

    code = "version-gone"
    default_hint = "ask for the newest version: only the last few are kept"


class VersionDropped(Conflict):
    """The signed blocks themselves do not make the content that was announced."""

    code = "version-dropped"
    default_hint = "the publisher's fault: go on to the next version"


class PeerFailed(Unavailable):
    """One peer sent a wrong answer, was too slow, or did not answer.

    Args:
        kind: Kind of the failure.
        detail: Description for logs.
    """

    code = "peer-failed"

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class NoProgress(Unavailable):
    """No peer sent a missing block or extension within the time-out."""

    code = "no-progress"
    default_hint = "check the relays' URLs and the network; verified blocks are kept for the next try"


class StaleRelays(Unavailable):
    """The ledger names a newer version than any relay can prove."""

    code = "stale-relays"
    default_hint = "the relays are behind or withhold it: try again, or add another relay"


class VersionDiskFull(Unavailable):
    """There is no room for the version; nothing of it stays on the disk."""

    code = "disk-full"
    retryable = False
    default_hint = "make room on that disk, or keep fewer versions, and try again"
