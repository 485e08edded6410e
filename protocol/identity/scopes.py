"""What a pool owner's token may do. Apart from the tokens themselves, because what only names a scope checks none."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a token may do; each includes those above it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        """Whether this scope is enough where `other` is needed."""
        order = list(Scope)
        return order.index(self) >= order.index(other)
