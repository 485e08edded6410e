"""Chooses the versions that are published whole: every n-th, which bounds chains of deltas."""

from __future__ import annotations

from dataclasses import dataclass

from shardcast.delta.selection import stands_alone
from shardcast.serve.version_index import VersionIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Form in which a version is published."""

    base: int | None
    """The version that its deltas are built on; None for no deltas."""
    full: bool
    """Whether whole files are published too."""


def next_form(versions: VersionIndex, version: int, *, anchor_every: int) -> Form:
    """Returns the form of a version, given the versions that its origin holds.

    Args:
        versions: The origin's versions.
        version: Number of the new version.
        anchor_every: One in so many travels whole, and what changed since the one before besides; 1 for whole ones
            without deltas.
    """
    before = next((each for each in versions if each.manifest.sealed and each.manifest.key.version < version), None)
    # A reader that accepts only the new key could not use a base signed by the former one.
    if before is None or anchor_every == 1 or before.manifest.signer != versions.publisher:
        return Form(base=None, full=True)
    links, at = 1, before
    while not stands_alone(at.manifest):
        base = at.manifest.base
        held = None if base is None else versions.get(base.version)
        if held is None:
            links = anchor_every
            break
        links, at = links + 1, held
    return Form(base=before.manifest.key.version, full=links >= anchor_every)
