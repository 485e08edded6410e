"""Checks a webhook's URL, so that no request goes into the orchestrator's own network."""

from __future__ import annotations

from protocol.errors import InvalidInput
from protocol.http.url_safety import addresses_of, is_public, parse_http_url


async def check_destination(url: str, *, allow_private: bool) -> list[str]:
    """Returns the addresses of the URL's host, if requests to all of them are allowed.

    The caller must send its request to one of these addresses. The caller must not resolve the host name again, because
    the name may then have another address.

    Raises:
        InvalidInput: The URL is malformed; or it is plain http or in a private network, and `allow_private` is False.
        Unavailable: The host name can't be resolved.
    """
    split = parse_http_url(url, what="a webhook's URL", code="bad-webhook-url", query=True)
    host, port = split.hostname or "", split.port or (443 if split.scheme == "https" else 80)
    if split.scheme == "http" and not allow_private:
        raise InvalidInput(
            "a webhook's URL must begin with https://", hint="use a receiver with https", code="bad-webhook-url"
        )
    addresses = await addresses_of(host, port)
    for one in addresses:
        if not allow_private and not is_public(one):
            raise InvalidInput(
                f"the webhook's host {host[:100]} is {one}, inside a private network",
                hint="use a public receiver, or allow webhooks_to_private_networks in the settings",
                code="private-webhook-url",
            )
    return addresses
