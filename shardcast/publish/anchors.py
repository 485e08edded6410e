"""Chooses the versions that are published whole.

With one whole version in N, no chain of deltas has more than N - 1 links.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardcast.delta.selection import stands_alone
from shardcast.serve.version_index import VersionIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Form in which a version is published: as deltas, as whole files, or both."""

    base: int | None
    """Number of the version that the deltas are applied to; None if the version is published without deltas."""
    full: bool
    """Whether every file is published whole."""


def next_form(versions: VersionIndex, version: int, *, anchor_every: int) -> Form:
    """Returns the form in which an origin publishes a new version.

    Args:
        versions: The versions that the origin holds.
        version: Number of the new version.
        anchor_every: With a value N, one version in N is published whole and also as deltas, and the other versions
            only as deltas. 1 publishes all versions whole, without deltas.
    """
    before = next((each for each in versions if each.manifest.sealed and each.manifest.key.version < version), None)
    # The first version after a key rotation has no base: a reader that accepts only the new key could not verify a base
    # that the former key signed.
    if before is None or anchor_every == 1 or before.manifest.signer != versions.publisher:
        return Form(base=None, full=True)
    links, at = 1, before
    while not stands_alone(at.manifest):
        base = at.manifest.base
        held = None if base is None else versions.get(base.version)
        if held is None:
            links = anchor_every  # the length of the chain is unknown, so the new version is published whole
            break
        links, at = links + 1, held
    return Form(base=before.manifest.key.version, full=links >= anchor_every)
