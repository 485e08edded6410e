"""The accounts that a development chain funds.

Their keys are derived from the well-known test mnemonic of EVM tools. The keys are public: money sent to these accounts
on a real chain is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eth_account.hdaccount import key_from_seed, seed_from_mnemonic
from eth_keys.datatypes import PrivateKey

from protocol.identifiers import Address

DEVELOPMENT_MNEMONIC = "test test test test test test test test test test test junk"
"""The mnemonic of anvil and Hardhat, for development chains only."""

DEVELOPMENT_BALANCE = 10_000 * 10**18
"""Initial balance of each account, in wei; anvil's default."""

_PATH = "m/44'/60'/0'/0/{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevelopmentAccount:
    """A funded account whose key is public knowledge.

    Args:
        address: Checksummed address.
        key: Private key, 0x and 64 hex digits. `repr` omits it, as for real keys, which must never be logged.
    """

    address: Address
    key: str = field(repr=False)


def development_accounts(count: int = 10, *, mnemonic: str = DEVELOPMENT_MNEMONIC) -> tuple[DevelopmentAccount, ...]:
    """Derives the first `count` accounts of a mnemonic (BIP-39, BIP-44 path m/44'/60'/0'/0/i)."""
    seed = seed_from_mnemonic(mnemonic, passphrase="")
    return tuple(_account(key_from_seed(seed, _PATH.format(index=index))) for index in range(count))


def _account(secret: bytes) -> DevelopmentAccount:
    key = PrivateKey(secret)
    return DevelopmentAccount(address=Address(key.public_key.to_checksum_address()), key=key.to_hex())
