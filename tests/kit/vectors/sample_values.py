"""Values and conversions that the test vectors share."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from protocol.identifiers import ZERO_DIGEST, digest, run_id
from protocol.identity.keys import Key
from protocol.identity.secp256k1 import HALF_ORDER
from protocol.identity.typed_data import SigningDomain, TypedStruct
from protocol.invites import Invite, Join, Leave
from protocol.leases import Dispute, Lease, ServedSlot, SlotSalt, WorkClaim
from protocol.node_registration import NodeConsent, ProviderConsent

Json = dict[str, Any]
ORDER = 2 * HALF_ORDER + 1
NODE, SERVICE, PROVIDER, OTHER = (Key(bytes([byte]) * 32) for byte in (1, 2, 3, 4))
CHAIN = 31337
DOMAIN = SigningDomain(CHAIN, SERVICE.address)
AT_S = 1_767_225_600
"""2026-01-01 00:00:00 UTC."""
NONCE = bytes(range(16)).hex()
SEED = bytes(range(32))


class Refused(Exception):
    """A case is refused for a reason that has no error of the product."""


Cases = tuple[list[Json], dict[str, Json]]
"""Inputs that are accepted, and inputs that are refused by what is wrong with them."""


RUN, VERSION = run_id("letters"), digest(b"\xb2" * 32)
INVITE = Invite(pool_id=7, domain_id=1, node=NODE.address, nonce=42, expiry=AT_S + 3600, url="https://pool.example")
SALT = SlotSalt(pool_id=7, run=RUN, step=3, index=2, node=NODE.address, version=2, digest=VERSION)
LEASE = Lease(
    pool_id=7,
    run=RUN,
    step=3,
    index=2,
    node=NODE.address,
    version=2,
    digest=VERSION,
    beacon_block=118,
    salt=SALT.derive(SERVICE, DOMAIN),
    groups=8,
    max_units=4096,
    expiry=AT_S + 600,
)
WORK = WorkClaim(lease_hash=LEASE.hash, sha256=digest(b"\xc3" * 32), units=731)
DISPUTE = Dispute(key=LEASE.key.hash, evidence_hash=ZERO_DIGEST, deadline=AT_S + 600)
CONSENT = NodeConsent(provider=PROVIDER.address, node=NODE.address, nonce=0, deadline=AT_S + 600)
SIGNED: list[tuple[TypedStruct, Key]] = [
    (CONSENT, NODE),
    (
        ProviderConsent(
            provider=PROVIDER.address,
            node=NODE.address,
            specs_hash=ZERO_DIGEST,
            capacity=1,
            nonce=0,
            deadline=AT_S + 600,
        ),
        PROVIDER,
    ),
    (INVITE, SERVICE),
    (Join(invite_hash=INVITE.hash), NODE),
    (Leave(pool_id=7, node=NODE.address, nonce=1, deadline=AT_S + 600), NODE),
    (LEASE, SERVICE),
    (WORK, NODE),
    (DISPUTE, NODE),
    (SALT, SERVICE),
    (ServedSlot(key=LEASE.key.hash, list_hash=digest(b"\xd4" * 32)), SERVICE),
]


def unless_claimed(given: Json, result: Json) -> Json:
    if given.get("claimed", result) != result:
        raise Refused("other-value")
    return result


def members(kind: type[TypedStruct]) -> list[tuple[str, str]]:
    listed = kind.TYPE.partition("(")[2].removesuffix(")").split(",")
    return [(of, name) for of, _, name in (member.partition(" ") for member in listed)]


def value_of(value: str, of: str) -> str | int:
    return int(value) if of.startswith("uint") else value


def plain(value: object) -> object:
    match value:
        case bytes():
            return hex_of(value)
        case int():
            return str(value)
        case _:
            return value


def float_hex(value: np.float32) -> str:
    return "0x" + struct.pack(">f", float(value)).hex()


def bytes_of(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def hex_of(data: bytes) -> str:
    return "0x" + data.hex()
