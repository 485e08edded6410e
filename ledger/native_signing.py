"""Refuses to run without native secp256k1: in pure Python a signature costs 5 and a recovery 50 times as much."""

from __future__ import annotations

from eth_keys.backends import get_default_backend_class

from protocol.errors import Unavailable


class NativeSigningMissing(Unavailable):
    """The C library for signatures can't be loaded."""

    code = "native-signing-missing"
    retryable = False
    default_hint = "pip install coincurve"


def require_native_signing() -> None:
    """Returns if signatures are made by libsecp256k1.

    Raises:
        NativeSigningMissing: They would be made in pure Python.
    """
    backend = get_default_backend_class()
    if "CoinCurve" not in backend.rsplit(".", 1)[-1]:
        raise NativeSigningMissing(f"signatures would be made by {backend}, which is too slow for a network")
