"""Registries of images: which ones a task's image may name, and what the owner learns of a failed pull.

The engine pulls images with this machine's network, not with the task's. The owner of a task chooses the registry, and
could name a service of the local network or of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network

from protocol.errors import Unavailable
from protocol.http.url_safety import addresses_of, is_in, is_loopback, is_public
from protocol.runtime.logs import get_logger
from worker.runtime.interface import ImageMissing, LaunchRefused, PullFailed
from worker.runtime.network_filter import own_addresses

_DEFAULT_REGISTRY = "docker.io"
_LONGEST_TEXT = 1000
_MISSING = ("not found", "does not exist", "manifest unknown", "pull access denied", "name unknown", "no such image")
_DENIED = ("unauthorized", "denied", "authentication required")
_NOW = {
    "no space left": "this machine's disk is full",
    "toomanyrequests": "the registry limits the rate of pulls",
    "no such host": "the registry is unreachable",
    "dial tcp": "the registry is unreachable",
    "timeout": "the registry is unreachable",
    "deadline exceeded": "the registry is unreachable",
    "connection": "the registry is unreachable",
    "eof": "the registry is unreachable",
    "tls": "the connection to the registry can't be secured",
    "x509": "the connection to the registry can't be secured",
    "http response to https": "the connection to the registry can't be secured",
}
"""Causes of failed pulls that may pass, by a part of the engine's text. The first match counts."""
_log = get_logger(__name__)


def registry_of(image: str) -> str:
    """Returns the host of an image's registry, without port.

    The first component of the reference is a host if it has a dot, a colon or a capital letter, or is `localhost`
    (`splitDockerDomain` in distribution/reference). A host with an IPv6 address has brackets, which are removed.
    """
    first, slash, _ = image.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        return _DEFAULT_REGISTRY
    if first.startswith("["):
        return first[1:].partition("]")[0]
    return first.partition(":")[0]


async def require_public_registry(image: str, allowed: Sequence[IPv4Network]) -> None:
    """Checks that an image's registry has public addresses, or addresses in an allowed network.

    The engine resolves the registry's name again, and follows redirects and token realms; this check can't see those.

    Args:
        image: Reference of the image.
        allowed: Networks in which registries may be although they are private.

    Raises:
        LaunchRefused: The registry is this machine or in a private network.
        PullFailed: The registry's name can't be resolved.
    """
    host = registry_of(image)
    if host == _DEFAULT_REGISTRY:
        return
    try:
        found = ["127.0.0.1"] if is_loopback(host) else await addresses_of(host, 443)
    except Unavailable as error:
        raise PullFailed(f"the registry {host[:100]} can't be resolved") from error
    own = {str(address) for address in own_addresses()}
    if any((address in own or not is_public(address)) and not is_in(address, allowed) for address in found):
        raise LaunchRefused(
            f"the registry {host[:100]} is in a private network or on this machine",
            hint="use an image in a public registry, or ask the contributor to add the registry's address to "
            "allow_networks in [worker]",
            code="registry-not-public",
        )


def pull_error(image: str, text: str) -> ImageMissing | PullFailed:
    """Returns the error of a failed pull, which the task's owner sees; the engine's text goes to the log only.

    The text can quote what a service answered that the registry redirected the engine to.
    """
    _log.warning("pull-failed", image=image, detail=text.strip()[:_LONGEST_TEXT])
    lower = text.lower()
    if any(sign in lower for sign in _MISSING):
        return ImageMissing(f"the image {image} does not exist, or access is denied")
    if any(sign in lower for sign in _DENIED):
        return ImageMissing(
            f"the registry refuses access to the image {image}",
            hint="give the task credentials that can read the image",
            code="registry-denied",
        )
    cause = next((cause for sign, cause in _NOW.items() if sign in lower), "the engine failed")
    return PullFailed(f"the image {image} could not be pulled: {cause}; the worker's log has the engine's error")
