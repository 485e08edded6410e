"""Requires native secp256k1 for signatures.

In pure Python, signing takes 5 times and recovering a signer 50 times as long.
"""

from __future__ import annotations

from eth_keys.backends import get_default_backend_class

from protocol.errors import Unavailable


class NativeSigningMissing(Unavailable):
    """libsecp256k1 can't be loaded."""

    code = "native-signing-missing"
    retryable = False
    default_hint = "pip install coincurve"


def require_native_signing() -> None:
    """Checks that eth-keys uses libsecp256k1.

    Raises:
        NativeSigningMissing: eth-keys would sign in pure Python.
    """
    backend = get_default_backend_class()
    if "CoinCurve" not in backend.rsplit(".", 1)[-1]:
        raise NativeSigningMissing(f"eth-keys uses {backend}, which is too slow: libsecp256k1 is not available")
