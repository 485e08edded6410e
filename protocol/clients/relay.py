"""Client of an orchestrator for a checkpoint relay, which registers its URL and renews the registration."""

from __future__ import annotations

from pydantic import ValidationError

from protocol.clients.base import TypedClient
from protocol.errors import InvalidInput
from protocol.wire.relays import RelayLease, RelayOffer


class RelayClient(TypedClient):
    """Client of a pool's orchestrator for a relay."""

    async def register(self, url: str) -> RelayLease:
        """Registers this relay with the pool, or renews its registration.

        Raises:
            Forbidden: The pool's owner does not allow this relay.
            InvalidInput: Nodes must not use this URL.
        """
        try:
            offer = RelayOffer(url=url)
        except ValidationError:
            raise InvalidInput(
                f"{url[:100]!r} is no URL of a relay", hint="for example https://relay.example"
            ) from None
        answer = await self.call("PUT", "/v1/relays", body=offer, signed_answer=True, repeatable=True)
        return answer.read(RelayLease)

    async def leave(self) -> None:
        """Ends the registration."""
        await self.call("DELETE", "/v1/relays", repeatable=True)
