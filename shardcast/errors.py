"""Errors of checkpoint downloads, and their meaning for the caller.

MusterError
├── InvalidInput
│   ├── BadManifest      a peer sent an extension that the publisher did not sign, or that contradicts earlier ones
│   └── BadBlock         a peer sent a block whose hash differs from the one in the signed manifest
├── NotFound
│   └── VersionGone      no peer holds the version: it was removed, or it never existed
├── Conflict
│   └── VersionDropped   the blocks that the publisher signed do not produce the announced files
└── Unavailable
    ├── PeerFailed       one peer sent a wrong answer, was too slow, or did not answer
    ├── NoProgress       no peer sent a missing block or extension within the time-out
    ├── StaleRelays      no relay has a signed manifest of the newest version that the ledger names
    └── VersionDiskFull  the disk has no room for the version; its partial files were deleted

`Client` raises `VersionGone`, `VersionDropped`, `NoProgress`, `StaleRelays` and `VersionDiskFull`. A download handles
`BadManifest`, `BadBlock` and `PeerFailed` itself: it counts the failure and asks another peer.
"""

from __future__ import annotations

from enum import Enum

from protocol.errors import Conflict, InvalidInput, NotFound, Unavailable


class FailureKind(Enum):
    """Kind of a peer's failure; a label of the metric `muster_shardcast_peer_errors`."""

    UNREACHABLE = "unreachable"
    """No connection to the peer could be opened."""
    REFUSED = "refused"
    """The peer answered with an error, or with other data than the reader requested."""
    STALLED = "stalled"
    """The peer stopped sending, or sent too slowly."""
    CUT = "cut"
    """The connection closed in the middle of an answer."""
    BAD_BLOCK = "bad-block"
    """The peer sent a block whose hash differs from the signed one."""
    BAD_MANIFEST = "bad-manifest"
    """The peer sent a manifest extension that is not the publisher's."""
    GONE = "gone"
    """The peer does not have the version."""


class BadManifest(InvalidInput):
    """A manifest extension that the publisher did not sign, or that contradicts earlier ones."""

    code = "bad-manifest"
    default_hint = (
        "the relay altered the manifest, or serves another run: use another relay, and check the publisher's address"
    )


class BadBlock(InvalidInput):
    """A block whose hash differs from the one in the signed manifest."""

    code = "bad-block"
    default_hint = "the relay altered the block: use another relay"


class VersionGone(NotFound):
    """No peer holds the version: it was removed, or it never existed."""

    code = "version-gone"
    default_hint = "fetch the newest version: relays keep only the last few"


class VersionDropped(Conflict):
    """The blocks that the publisher signed for a version do not produce the announced files.

    Only the publisher can repair such a version, by a new attempt.
    """

    code = "version-dropped"
    default_hint = "the publisher made an error in this version: wait for the next version"


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
    """No relay has a signed manifest of the newest version that the ledger names."""

    code = "stale-relays"
    default_hint = "the relays are behind, or withhold the version: try again, or add another relay"


class VersionDiskFull(Unavailable):
    """The disk has no room for the version; its partial files were deleted."""

    code = "disk-full"
    retryable = False
    default_hint = "free space on that disk, or keep fewer versions, and try again"
