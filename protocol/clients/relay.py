"""Client of an orchestrator for a checkpoint relay.

The relay registers its URL and renews the registration.
"""

from __future__ import annotations

from pydantic import ValidationError

from protocol.errors import InvalidInput
from protocol.http.client import ServiceClient
from protocol.wire.relays import RelayLease, RelayOffer


class RelayClient(ServiceClient):
    """Client of a pool's orchestrator for one checkpoint relay."""

    async def register(self, url: str) -> RelayLease:
        """Registers this relay with the pool, or renews its registration.

        Raises:
            Forbidden: The pool's owner does not allow this relay.
            InvalidInput: The URL is malformed, or leads to an address that nodes must not use.
        """
        try:
            offer = RelayOffer(url=url)
        except ValidationError:
            raise InvalidInput(
                f"{url[:100]!r} is not a relay's URL", hint="write a URL like https://relay.example"
            ) from None
        answer = await self.call("PUT", "/v1/relays", body=offer, signed_answer=True, repeatable=True)
        return answer.read(RelayLease)

    async def leave(self) -> None:
        """Ends the registration of this relay."""
        await self.call("DELETE", "/v1/relays", repeatable=True)
