"""Decodes untrusted ABI data, in which strings need not be UTF-8."""

from __future__ import annotations

from eth_abi.codec import ABICodec
from eth_abi.decoding import StringDecoder
from eth_abi.registry import BaseEquals, registry


def _lenient() -> ABICodec:
    # Solidity stores any bytes in a `string`, and eth-abi raises UnicodeDecodeError for bytes that are not UTF-8. One
    # malicious transaction could then make every result or event that contains its string unreadable.
    lenient = registry.copy()  # type: ignore[no-untyped-call]  # eth-abi does not annotate these functions
    lenient.unregister_decoder("string")
    strings = StringDecoder(handle_string_errors="replace")  # type: ignore[no-untyped-call]
    lenient.register_decoder(BaseEquals("string"), strings, label="string")  # type: ignore[no-untyped-call]
    return ABICodec(lenient)


decode = _lenient().decode
"""Like `eth_abi.abi.decode`; bytes of a string that are not UTF-8 become U+FFFD."""
