"""TLS contexts of HTTP clients, shared by all clients of a process.

Loading the system's certificate authorities takes 0.03 CPU seconds, and httpx loads them for each client.
"""

from __future__ import annotations

import ssl
from functools import cache
from urllib.request import getproxies

import httpx


@cache
def authorities(*, trust_env: bool = True) -> ssl.SSLContext:
    """Returns a context that trusts the system's certificate authorities.

    Args:
        trust_env: Whether the environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` may name others.
    """
    return httpx.create_ssl_context(trust_env=trust_env)


@cache
def no_authorities() -> ssl.SSLContext:
    """Returns a context that trusts nobody, for plain HTTP and Unix sockets."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def trust_of(url: str) -> ssl.SSLContext:
    """Returns the context for a service's URL. A proxy may need authorities also for plain HTTP."""
    return authorities() if url.startswith("https:") or getproxies() else no_authorities()
