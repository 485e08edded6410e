"""EIP-712 structs that are signed for the ledger.

Their type strings must equal those of the contracts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import ClassVar

from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest, digest
from protocol.identity import secp256k1
from protocol.identity.keys import Key

NAME = "Muster"
VERSION = "2"
"""Version of the EIP-712 domain of every contract. A change of name or version invalidates all signatures.

Version 2 added a beacon block and a salt to leases (`docs/decisions/0054-leases-carry-salt-and-beacon.md`)."""

_DOMAIN_TYPE = secp256k1.keccak(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")


@dataclass(frozen=True, slots=True)
class SigningDomain:
    """The contract and chain for which a signature is valid."""

    chain_id: int
    contract: Address

    @property
    def separator(self) -> bytes:
        """Returns the domain separator of EIP-712, 32 bytes."""
        return separator_of(self)


class TypedStruct:
    """Base class of a signed EIP-712 struct.

    Subclasses are dataclasses, whose fields have the same order as the members in `TYPE`.
    """

    __slots__ = ()

    TYPE: ClassVar[str]
    """EIP-712 type string `Name(type field,…)`, as in the contract."""

    def struct_hash(self) -> bytes:
        """Returns the struct's EIP-712 hash, 32 bytes."""
        kinds = _kinds(self.TYPE)
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]  # each subclass is a dataclass
        if len(kinds) != len(values):
            raise TypeError(f"{type(self).__name__} has {len(values)} fields, but TYPE has {len(kinds)} members")
        words = [_word(kind, value, self) for kind, value in zip(kinds, values, strict=True)]
        return secp256k1.keccak(_type_hash(self.TYPE) + b"".join(words))

    def signing_hash(self, domain: SigningDomain) -> bytes:
        """Returns the 32-byte hash that is signed for a contract and chain."""
        return secp256k1.keccak(b"\x19\x01" + domain.separator + self.struct_hash())

    def sign(self, key: Key, domain: SigningDomain) -> bytes:
        """Signs the struct; returns 65 bytes r, s, v.

        Raises:
            InvalidInput: A field's value does not fit its EIP-712 type.
        """
        return key.sign_hash(self.signing_hash(domain))

    def signer(self, signature: bytes, domain: SigningDomain) -> Address:
        """Returns the address that signed the struct.

        Raises:
            InvalidInput: The signature is malformed.
        """
        return secp256k1.recover(self.signing_hash(domain), signature)


def _word(kind: str, value: object, struct: TypedStruct) -> bytes:
    match kind, value:
        case "address", str():
            return bytes(12) + bytes.fromhex(value[2:])
        case "bytes32", str():
            return bytes.fromhex(value[2:])
        case "string", str():
            return secp256k1.keccak(value.encode())
        case _, int() if kind.startswith("uint") and 0 <= value < 1 << int(kind[4:]):
            return value.to_bytes(32, "big")
    raise InvalidInput(f"{str(value)[:80]!r} in {type(struct).__name__} is not a valid {kind}")


@lru_cache(maxsize=64)
def _kinds(type_string: str) -> tuple[str, ...]:
    match = re.fullmatch(r"[A-Za-z]+\((.*)\)", type_string)
    if match is None:
        raise TypeError(f"{type_string} is not an EIP-712 type string")
    return tuple(member.split(" ")[0] for member in match[1].split(","))


@lru_cache(maxsize=64)
def _type_hash(type_string: str) -> bytes:
    return secp256k1.keccak(type_string.encode())


@lru_cache(maxsize=256)
def separator_of(domain: SigningDomain, *, version: str = VERSION) -> bytes:
    """Returns the EIP-712 domain separator of a contract for one version of its domain, 32 bytes."""
    return secp256k1.keccak(
        _DOMAIN_TYPE
        + secp256k1.keccak(NAME.encode())
        + secp256k1.keccak(version.encode())
        + domain.chain_id.to_bytes(32, "big")
        + bytes(12)
        + bytes.fromhex(domain.contract[2:])
    )


def abi_hash(*words: int | Address | Digest) -> Digest:
    """Returns the Keccak-256 hash of `abi.encode` of integers, addresses and 32-byte values."""
    return digest(
        secp256k1.keccak(
            b"".join(
                word.to_bytes(32, "big") if isinstance(word, int) else bytes.fromhex(word[2:]).rjust(32, b"\0")
                for word in words
            )
        )
    )
