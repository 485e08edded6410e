"""Signatures for the ledger are EIP-712 and match those of another library."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from protocol.identifiers import Address, digest
from protocol.identity.keys import Key
from protocol.identity.secp256k1 import keccak
from protocol.identity.typed_data import SigningDomain, TypedStruct
from protocol.invites import Invite, Join, Leave
from protocol.leases import Dispute, Lease, SlotSalt, WorkClaim, WorkKey
from protocol.node_registration import NodeConsent, ProviderConsent
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.invites import SignedInvite

KEY = Key(b"\x01" * 32)
OTHER = Key(b"\x02" * 32)
DOMAIN = SigningDomain(31337, OTHER.address)
ONE, TWO = digest(b"\x0a" * 32), digest(b"\x0b" * 32)

STRUCTS: list[TypedStruct] = [
    NodeConsent(provider=KEY.address, node=OTHER.address, nonce=2**256 - 1, deadline=1_800_000_000),
    ProviderConsent(
        provider=KEY.address, node=OTHER.address, specs_hash=ONE, capacity=2**32 - 1, nonce=0, deadline=1_800_000_000
    ),
    Invite(pool_id=3, domain_id=1, node=OTHER.address, nonce=99, expiry=1_800_000_000, url="https://pool.example/ü"),
    Join(invite_hash=ONE),
    Leave(pool_id=3, node=OTHER.address, nonce=1, deadline=1_800_000_000),
    Lease(
        pool_id=3,
        run=ONE,
        step=4,
        index=5,
        node=OTHER.address,
        version=6,
        digest=TWO,
        beacon_block=2**64 - 1,
        salt=ONE,
        groups=7,
        max_units=8,
        expiry=1_800_000_000,
    ),
    WorkClaim(lease_hash=ONE, sha256=TWO, units=12),
    Dispute(key=ONE, evidence_hash=TWO, deadline=1_800_000_000),
]
SALT = SlotSalt(pool_id=3, run=ONE, step=4, index=5, node=OTHER.address, version=6, digest=TWO)


def encoded_by_eth_account(struct: TypedStruct) -> dict[str, object]:
    match = re.fullmatch(r"(\w+)\((.*)\)", struct.TYPE)
    assert match is not None
    members = [member.split(" ") for member in match[2].split(",")]
    values = [getattr(struct, field.name) for field in fields(struct)]  # type: ignore[arg-type]  # each is a dataclass
    return {
        "domain": {"name": "Muster", "version": "2", "chainId": DOMAIN.chain_id, "verifyingContract": DOMAIN.contract},
        "primaryType": match[1],
        "types": {
            "EIP712Domain": [
                {"name": "name", "type": "string"},
                {"name": "version", "type": "string"},
                {"name": "chainId", "type": "uint256"},
                {"name": "verifyingContract", "type": "address"},
            ],
            match[1]: [{"name": name, "type": kind} for kind, name in members],
        },
        "message": {
            name: bytes.fromhex(value[2:]) if kind == "bytes32" else value
            for (kind, name), value in zip(members, values, strict=True)
        },
    }


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: type(struct).__name__)
def test_signatures_match_those_of_another_library(struct: TypedStruct) -> None:
    theirs = Account.sign_message(
        encode_typed_data(full_message=encoded_by_eth_account(struct)), KEY.reveal()
    ).signature
    assert struct.sign(KEY, DOMAIN) == bytes(theirs)


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: type(struct).__name__)
def test_type_hashes_match_those_of_the_contracts(struct: TypedStruct) -> None:
    sources = Path(__file__).parents[2] / "ledger" / "contracts"
    text = "".join(path.read_text() for path in sources.rglob("*.sol"))
    assert f'"{struct.TYPE}"' in text


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: type(struct).__name__)
def test_a_signature_is_valid_for_one_contract_on_one_chain(struct: TypedStruct) -> None:
    signature = struct.sign(KEY, DOMAIN)
    assert struct.signer(signature, DOMAIN) == KEY.address
    assert struct.signer(signature, replace(DOMAIN, chain_id=1)) != KEY.address
    assert struct.signer(signature, replace(DOMAIN, contract=KEY.address)) != KEY.address


def test_a_salt_is_equal_on_every_replica_and_differs_per_slot_key_and_contract() -> None:
    salt = SALT.derive(KEY, DOMAIN)
    signature = SALT.sign(KEY, DOMAIN)
    assert salt == SALT.derive(KEY, DOMAIN) == digest(hashlib.sha256(signature[:64]).digest())
    slots = [
        replace(SALT, pool_id=4),
        replace(SALT, run=TWO),
        replace(SALT, step=5),
        replace(SALT, index=6),
        replace(SALT, node=KEY.address),
        replace(SALT, version=7),
        replace(SALT, digest=ONE),
    ]
    others = [slot.derive(KEY, DOMAIN) for slot in slots]
    others += [SALT.derive(OTHER, DOMAIN), SALT.derive(KEY, replace(DOMAIN, chain_id=1))]
    assert len({salt, *others}) == len(others) + 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("step", 2**64), ("index", 2**32), ("max_units", -1), ("groups", 1.5), ("node", 7), ("version", True)],
)
def test_a_field_out_of_range_is_refused(field: str, value: object) -> None:
    lease = replace(STRUCTS[5], **{field: value})  # type: ignore[type-var]  # a Lease
    if value is True:
        assert lease.struct_hash() == replace(STRUCTS[5], **{field: 1}).struct_hash()  # type: ignore[type-var]
        return
    with pytest.raises(InvalidInput, match="is no"):
        lease.struct_hash()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**63))
def test_a_work_key_is_the_hash_of_the_abi_encoding(step: int, index: int, pool: int) -> None:
    key = WorkKey(pool_id=pool, run=ONE, node=KEY.address, step=step, index=index)
    packed = encode(
        ["uint256", "bytes32", "address", "uint64", "uint32"], [pool, bytes.fromhex(ONE[2:]), KEY.address, step, index]
    )
    assert key.hash == digest(keccak(packed))


def test_an_invite_survives_serialisation() -> None:
    invite = Invite(pool_id=3, domain_id=1, node=OTHER.address, nonce=2**255, expiry=5, url="https://pool.example")
    wire = SignedInvite.of(invite, domain=DOMAIN, signature=invite.sign(KEY, DOMAIN))
    again = SignedInvite.model_validate_json(wire.model_dump_json())
    assert (again.invite, again.domain, again.signer()) == (invite, DOMAIN, KEY.address)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nonce", str(2**256)),
        ("nonce", "-1"),
        ("nonce", "01"),
        ("url", "ftp://pool.example"),
        ("url", "https://pool.example/" + "x" * 512),
        ("url", "https://pool.example/\n"),
        ("node", "0x12"),
        ("signature", "0x" + "00" * 64),
        ("pool_id", 0),
    ],
)
def test_a_malformed_invite_is_refused(field: str, value: object) -> None:
    invite = Invite(pool_id=3, domain_id=1, node=OTHER.address, nonce=1, expiry=5, url="https://pool.example")
    wire = SignedInvite.of(invite, domain=DOMAIN, signature=invite.sign(KEY, DOMAIN)).model_dump()
    with pytest.raises(ValueError, match=field):
        SignedInvite.model_validate(wire | {field: value})


def test_an_invite_is_expired_at_its_expiry_and_a_lease_only_after_it() -> None:
    moment = datetime.fromtimestamp(1_800_000_000, UTC)
    invite, lease = STRUCTS[2], STRUCTS[5]
    assert isinstance(invite, Invite)
    assert isinstance(lease, Lease)
    assert (invite.expired(moment), lease.expired(moment)) == (True, False)
    assert not replace(lease, expiry=2**63).expired(moment)


def test_numbers_stored_on_the_ledger_never_change() -> None:
    assert [outcome.value for outcome in Outcome] == [1, 2, 3]
    assert len({code.value for code in ReasonCode}) == len(ReasonCode)
    assert all(0 <= code < 2**16 for code in ReasonCode)
    assert ReasonCode.SAMPLING_REPLAY.check == 9
    assert ReasonCode.LOG_PROBABILITIES_DIFFER.check == 10
    assert not ReasonCode.INFRASTRUCTURE.may_be_forgery
    assert not ReasonCode.COMPUTATION_UNCONFIRMED.may_be_forgery
    assert ReasonCode.SEED_KEYS.may_be_forgery


def test_struct_hashes_differ_for_different_addresses() -> None:
    join = Leave(pool_id=1, node=Address(KEY.address), nonce=0, deadline=0)
    assert join.struct_hash() != replace(join, node=OTHER.address).struct_hash()
