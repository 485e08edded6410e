"""Scopes of a pool owner's tokens; a separate module, because many modules only name scopes."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Scope of a token; each includes those listed above it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        """Returns whether this scope includes `other`."""
        order = list(Scope)
        return order.index(self) >= order.index(other)
