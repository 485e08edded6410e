"""URL checks of webhooks: a pool owner's URL must not make the orchestrator call its own network."""

from __future__ import annotations

from protocol.errors import InvalidInput
from protocol.http.url_safety import addresses_of, is_public, parse_http_url


async def check_destination(url: str, *, allow_private: bool) -> list[str]:
    """Returns the addresses of the URL's host, if requests to all of them are allowed.

    Deliver to one of these, not to the host name: the name may resolve to another address a moment later.

    Raises:
        InvalidInput: It is plain http or leads into a private network, and that is not allowed; or it is no URL.
        Unavailable: The name can't be resolved.
    """
    parts = parse_http_url(url, what="a webhook's URL", code="bad-webhook-url", query=True)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if parts.scheme == "http" and not allow_private:
        raise InvalidInput("webhooks go over https", hint="use an https receiver", code="bad-webhook-url")
    addresses = await addresses_of(host, port)
    for one in addresses:
        if not allow_private and not is_public(one):
            raise InvalidInput(
                f"the webhook's host {host[:100]} is {one}, inside a private network",
                hint="use a public receiver, or allow webhooks_to_private_networks in the settings",
                code="private-webhook-url",
            )
    return addresses
