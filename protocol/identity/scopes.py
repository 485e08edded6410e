"""Scopes of a pool owner's access tokens.

A separate module, because many modules name scopes without using tokens.
"""

from __future__ import annotations

from protocol.enumerations import WireEnum


class Scope(WireEnum):
    """Scope of an access token.

    Each scope includes those listed above it. A scope that this release does not know includes none.
    """

    READ = "read"
    """The holder may view everything that the service shows."""
    OPERATE = "operate"
    """The holder may also change things: for example run tasks at an orchestrator, or retry work at a validator."""
    ADMIN = "admin"
    """The holder may also do everything that the pool's manager may do over the API."""

    def includes(self, other: Scope) -> bool:
        """Returns whether this scope includes `other`."""
        order = list(Scope)
        return self.is_known and order.index(self) >= order.index(other)
