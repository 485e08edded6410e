"""Errors of checkpoint downloads, and their meaning for the caller.

MusterError
├── InvalidInput
│   ├── BadManifest     an extension that the publisher did not sign, or that contradicts the ones before it
│   └── BadBlock        bytes that are not those the publisher signed
├── NotFound
│   └── VersionGone     the version is held no longer, or never was
├── Conflict
│   └── VersionDropped  the signed blocks contradict the announced content, which can't be repaired
└── Unavailable
    ├── PeerFailed      one relay answered wrongly, too slowly, or not at all
    ├── NoProgress      no relay gives what is missing, and the patience for it is over
    ├── StaleRelays     the ledger knows a newer version than any relay shows
    └── DiskFull        there is no room for the version; nothing half-done is left behind

Whoever only fetches meets `VersionGone`, `VersionDropped` and the last three: what one relay does wrong is made good at
another, and counted.
"""

from __future__ import annotations

from protocol.errors import Conflict, InvalidInput, NotFound, Unavailable


class BadManifest(InvalidInput):
    """An extension that the publisher did not sign, or that contradicts the ones before it."""

    code = "bad-manifest"
    default_hint = "the relay altered it, or it is of another run: use another relay, and check the signer"


class BadBlock(InvalidInput):
    """Bytes that are not those the publisher signed."""

    code = "bad-block"
    default_hint = "the relay altered it: use another relay"


class VersionGone(NotFound):
    """The version is held no longer, or never was."""

    code = "version-gone"
    default_hint = "ask for the newest version: only the last few are kept"


class VersionDropped(Conflict):
    """The signed blocks themselves don't make the content that was announced."""

    code = "version-dropped"
    default_hint = "the publisher's fault: go on to the next version"


class PeerFailed(Unavailable):
    """One relay answered wrongly, too slowly, or not at all."""

    code = "peer-failed"


class NoProgress(Unavailable):
    """No relay gives what is missing, and the patience for it is over."""

    code = "no-progress"
    default_hint = "check the relays' URLs and the network; what is there already is kept for the next try"


class StaleRelays(Unavailable):
    """The ledger knows a newer version than any relay shows."""

    code = "stale-relays"
    default_hint = "the relays are behind or withhold it: try again, or add another relay"


class VersionDiskFull(Unavailable):
    """There is no room for the version; nothing half-done is left behind."""

    code = "disk-full"
    retryable = False
    default_hint = "make room on that disk, or keep fewer versions, and try again"
