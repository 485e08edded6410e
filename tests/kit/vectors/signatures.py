"""Cases of ids and signatures."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import fields
from datetime import UTC, datetime

from protocol.identifiers import ZERO_DIGEST, Address, digest, run_id
from protocol.identity.keys import Key
from protocol.identity.secp256k1 import keccak
from protocol.identity.signing import (
    sign_request,
    sign_response,
)
from protocol.identity.typed_data import TypedStruct
from protocol.invites import Join
from protocol.leases import ServedSlot, WorkClaim
from protocol.wire.federation import NodeStatement, node_target
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import SignedLease, SignedWorkClaim
from protocol.wire.served import RequestKind, ServedList, ServedRequest, SignedServedList, answer_digest
from tests.kit.vectors.checks import check_call, check_webhook
from tests.kit.vectors.sample_values import (
    AT_S,
    CHAIN,
    CONSENT,
    DISPUTE,
    DOMAIN,
    INVITE,
    LEASE,
    NODE,
    NONCE,
    ORDER,
    OTHER,
    PROVIDER,
    SALT,
    SEED,
    SERVICE,
    SIGNED,
    WORK,
    Cases,
    Json,
    bytes_of,
    hex_of,
    members,
)


def address_cases() -> Cases:
    good = NODE.address
    return [{"text": good}], {
        "lower case": {"text": good.lower()},
        "wrong checksum": {"text": good.replace("f", "F", 1)},
        "39 digits": {"text": good[:-1]},
    }


def run_id_cases() -> Cases:
    return [{"name": "letters"}, {"name": "Zahlen, größer"}, {"name": "0x" + "AB" * 32}], {
        "empty": {"name": ""},
        "65 bytes": {"name": "x" * 65},
    }


def work_key_cases() -> Cases:
    given: Json = {"pool_id": 7, "run": run_id("letters"), "node": NODE.address, "step": 3, "index": 2}
    packed = (
        (7).to_bytes(32, "big")
        + bytes_of(given["run"])
        + bytes_of(NODE.address)
        + (3).to_bytes(8, "big")
        + (2).to_bytes(4, "big")
    )
    return [given], {"abi.encodePacked instead of abi.encode": given | {"claimed": {"key": hex_of(keccak(packed))}}}


def version_digest_cases() -> Cases:
    files = [
        {"path": "model.safetensors", "size": 5, "sha256": hashlib.sha256(b"model").hexdigest()},
        {"path": "a/config.json", "size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()},
        {"path": "Z.txt", "size": 0, "sha256": hashlib.sha256(b"").hexdigest()},
    ]
    up, hidden = files[0] | {"path": "../model.safetensors"}, files[0] | {"path": ".hidden"}
    return [{"files": files}], {
        "no files": {"files": []},
        "a path twice": {"files": [files[0], files[0]]},
        "a path that leads out of the folder": {"files": [up]},
        "a hidden file": {"files": [hidden]},
        "a negative size": {"files": [files[0] | {"size": -1}]},
    }


def object_key_cases() -> Cases:
    tail = "ab" * 32
    good = [f"7/{NODE.address}/{tail}", f"7/audits/{OTHER.address}/{tail}"]
    return [{"text": text} for text in good], {
        "address in lower case": {"text": f"7/{NODE.address.lower()}/{tail}"},
        "leading zero": {"text": f"07/{NODE.address}/{tail}"},
        "hash in upper case": {"text": f"7/{NODE.address}/{tail.upper()}"},
    }


def protocol_version_cases() -> Cases:
    return [{"header": "1"}, {"header": "1-3"}], {
        "no common version": {"header": "2-3"},
        "falling range": {"header": "3-2"},
        "a version with a dot": {"header": "1.0"},
        "empty": {"header": ""},
    }


def request_cases() -> Cases:
    body = b'{"pool_id":7}'

    def signed(method: str, target: str, body: bytes, audience: Address = SERVICE.address) -> Json:
        stamp = sign_request(
            NODE,
            audience=audience,
            method=method,
            target=target,
            body=body,
            at=datetime.fromtimestamp(AT_S, UTC),
            nonce=NONCE,
        )
        return {
            "method": method,
            "target": target,
            "body": hex_of(body),
            "headers": stamp.headers(),
            "receiver": SERVICE.address,
            "receiver_time_ms": AT_S * 1000 + 60_000,
        }

    post, get = signed("POST", "/v1/heartbeat?dry=1", body), signed("GET", "/v1/run/step", b"")

    def altered(**headers: str | None) -> Json:
        changed = post["headers"] | {f"X-Muster-{name}": value for name, value in headers.items()}
        return post | {"headers": {name: value for name, value in changed.items() if value is not None}}

    signature = post["headers"]["X-Muster-Signature"]
    high_s = (ORDER - int(signature[66:130], 16)).to_bytes(32, "big").hex()
    flipped = {"1b": "1c", "1c": "1b"}[signature[130:]]
    return [post, get], {
        "another body": post | {"body": hex_of(body + b" ")},
        "the query is missing": post | {"target": "/v1/heartbeat"},
        "another method": post | {"method": "PUT"},
        "60.001 s late": post | {"receiver_time_ms": AT_S * 1000 + 60_001},
        "60.001 s early": post | {"receiver_time_ms": AT_S * 1000 - 60_001},
        "signed for another service": signed("POST", "/v1/heartbeat?dry=1", body, audience=PROVIDER.address),
        "another signer": altered(Address=OTHER.address),
        "address in lower case": altered(Address=NODE.address.lower()),
        "no nonce": altered(Nonce=None),
        "nonce in upper case": altered(Nonce=NONCE.upper()),
        "time with a fraction": altered(Timestamp=f"{AT_S * 1000}.0"),
        "high s": altered(Signature=signature[:66] + high_s + flipped),
        "v of 0 instead of 27": altered(Signature=signature[:130] + "00"),
        "signature in upper case": altered(Signature="0x" + signature[2:].upper()),
    }


def answer_cases() -> Cases:
    body = b'{"task":null}'
    headers = sign_response(SERVICE, address=NODE.address, nonce=NONCE, status=200, body=body)
    good = {
        "headers": headers,
        "service": SERVICE.address,
        "caller": NODE.address,
        "nonce": NONCE,
        "status": 200,
        "body": hex_of(body),
    }
    return [good], {
        "answer to another caller": good | {"caller": OTHER.address},
        "answer to another request": good | {"nonce": NONCE[::-1]},
        "another status": good | {"status": 201},
        "another body": good | {"body": hex_of(b'{"task":{}}')},
        "signed by another service": good | {"service": OTHER.address},
        "no signature": good | {"headers": {}},
    }


def typed_data_cases() -> Cases:
    accepted: list[Json] = []
    refused: dict[str, Json] = {}
    for made, key in SIGNED:
        good = _typed(made, key, made.sign(key, DOMAIN))
        accepted.append(good)
        refused[f"{made.TYPE.partition('(')[0]} for another chain"] = good | {"domain": good["domain"] | {"chainId": 1}}
    work = _typed(WORK, NODE, WORK.sign(NODE, DOMAIN))
    signature = bytes_of(work["signature"])
    by_signing_hash = WorkClaim(lease_hash=digest(LEASE.signing_hash(DOMAIN)), sha256=WORK.sha256, units=WORK.units)
    high_s = signature[:32] + (ORDER - int.from_bytes(signature[32:64], "big")).to_bytes(32, "big")
    return accepted, refused | {
        "leaseHash is the signing hash of the lease": work | {"signature": hex_of(by_signing_hash.sign(NODE, DOMAIN))},
        "units of 65 bits": work | {"message": work["message"] | {"units": str(2**64)}},
        "high s": work | {"signature": hex_of(high_s + bytes([55 - signature[64]]))},
        "v of 0 or 1": work | {"signature": hex_of(signature[:64] + bytes([signature[64] - 27]))},
        "64 bytes": work | {"signature": hex_of(signature[:64])},
    }


def served_list_cases() -> Cases:
    requests = [
        ServedRequest(
            id="0" * 31 + "1",
            kind=RequestKind.COMPLETION,
            body='{"model":"letters","prompt":"h\u00e9","max_tokens":2,"n":2}',
            seed=digest(SEED),
            choices=2,
            answer=answer_digest([("ab", [4, 5]), ("c", [6])]),
        ),
        ServedRequest(
            id="0" * 31 + "2",
            kind=RequestKind.GENERATE,
            body='{"token_ids": [4], "sampling_params": {"max_tokens": 1}}',
            seed=digest(b"\xe5" * 32),
            choices=1,
            answer=answer_digest([("", [7])]),
        ),
    ]

    def signed(content: str) -> Json:
        statement = ServedSlot(key=LEASE.key.hash, list_hash=digest(hashlib.sha256(content.encode()).digest()))
        return {"content": content, "signature": hex_of(statement.sign(SERVICE, DOMAIN))}

    content = ServedList(requests=tuple(requests)).encode().decode()
    document = SignedServedList.sign(
        ServedList(requests=tuple(requests)), work_key=LEASE.key.hash, key=SERVICE, domain=DOMAIN
    ).model_dump(mode="json")
    good = {"document": document, "work_key": LEASE.key.hash, "gateway": SERVICE.address}
    empty = good | {"document": signed(ServedList(requests=()).encode().decode())}
    return [good, empty], {
        "for another slot": good | {"work_key": digest(b"\x01" * 32)},
        "one character more than was signed": good | {"document": document | {"content": content + " "}},
        "another seed than was signed": good | {"document": document | {"content": content.replace("e5", "e6")}},
        "format 2": good | {"document": signed(content.replace('"format":1', '"format":2'))},
        "an unknown field": good | {"document": signed(content.replace('"format":1', '"format":1,"bonus":1'))},
        "no choices": good | {"document": signed(content.replace('"choices":2', '"choices":0'))},
        "not JSON": good | {"document": signed(content[:-1])},
    }


def answer_digest_cases() -> Cases:
    good: Json = {"choices": [["h\u00e9\n\U0001f600", [4, 5]], ['"', [6]]]}
    tag = b"muster-served-answer-v1"

    def claimed(content: str, prefix: bytes = tag) -> Json:
        return good | {"claimed": {"digest": hex_of(hashlib.sha256(prefix + content.encode()).digest())}}

    def compact(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    return [good, {"choices": [["", [7]]]}, {"choices": [["", []]]}], {
        "without the tag": claimed(compact(good["choices"]), b""),
        "with spaces": claimed(json.dumps(good["choices"], ensure_ascii=False)),
        "characters escaped": claimed(json.dumps(good["choices"], separators=(",", ":"))),
        "choices in another order": claimed(compact(good["choices"][::-1])),
    }


def invite_cases() -> Cases:
    document = SignedInvite.of(INVITE, domain=DOMAIN, signature=INVITE.sign(SERVICE, DOMAIN)).model_dump(mode="json")
    good = {"document": document, "orchestrator": SERVICE.address}
    changes: dict[str, Json] = {
        "nonce as a number": {"nonce": 42},
        "nonce with a leading zero": {"nonce": "042"},
        "nonce of 257 bits": {"nonce": str(2**256)},
        "a URL that is not HTTP": {"url": "ftp://pool.example"},
        "an unknown field": {"bonus": 1},
        "another expiry": {"expiry": document["expiry"] + 1},
    }
    return [good], {what: good | {"document": document | changed} for what, changed in changes.items()}


def node_statement_cases() -> Cases:
    def document(body: str | None, target: str) -> Json:
        stamp = sign_request(
            NODE,
            audience=SERVICE.address,
            method="DELETE" if body is None else "PUT",
            target=target,
            body=(body or "").encode(),
            at=datetime.fromtimestamp(AT_S, UTC),
            nonce=NONCE,
        )
        statement = NodeStatement(
            node=NODE.address,
            audience=SERVICE.address,
            timestamp_ms=stamp.timestamp_ms,
            nonce=NONCE,
            signature=hex_of(stamp.signature),
            body=body,
        )
        return statement.model_dump(mode="json")

    own, body = node_target(NODE.address), '{"pool_id":7}'
    registration, removal = document(body, own), document(None, own)
    changes: dict[str, Json] = {
        "another body": {"body": '{"pool_id":8}'},
        "a registration as a removal": {"body": None},
        "another time": {"timestamp_ms": registration["timestamp_ms"] + 1},
        "another service": {"audience": OTHER.address},
        "another node": {"node": OTHER.address},
        "an unknown field": {"ip": "192.0.2.1"},
    }
    refused = {what: {"document": registration | changed} for what, changed in changes.items()}
    refused["a path in lower case"] = {"document": document(body, own.lower())}
    return [{"document": registration}, {"document": removal}], refused


def lease_cases() -> Cases:
    document = SignedLease.of(LEASE, domain=DOMAIN, signature=LEASE.sign(SERVICE, DOMAIN)).model_dump(mode="json")
    good = {"document": document, "orchestrator": SERVICE.address}
    unsalted = {name: value for name, value in document.items() if name != "salt"}
    return [good], {
        "no salt": good | {"document": unsalted},
        "more units than the ledger stores": good | {"document": document | {"max_units": 2**40}},
        "no groups": good | {"document": document | {"groups": 0}},
        "an unknown field": good | {"document": document | {"bonus": 1}},
        "another limit than was signed": good | {"document": document | {"max_units": 4097}},
    }


def claim_cases() -> Cases:
    lease = SignedLease.of(LEASE, domain=DOMAIN, signature=LEASE.sign(SERVICE, DOMAIN))

    def claim(work: WorkClaim, key: Key = NODE) -> Json:
        signature = hex_of(work.sign(key, DOMAIN))
        made = SignedWorkClaim(lease=lease, sha256=work.sha256, units=work.units, signature=signature)
        return {"document": made.model_dump(mode="json")}

    good = claim(WORK)
    return [good], {
        "signed by another node": claim(WORK, OTHER),
        "other units than were signed": {"document": good["document"] | {"units": 732}},
        "more units than the lease allows": claim(WorkClaim(lease_hash=LEASE.hash, sha256=WORK.sha256, units=4097)),
        "no units": {"document": good["document"] | {"units": 0}},
    }


def dispute_cases() -> Cases:
    document: Json = {
        "key": DISPUTE.key,
        "evidence_hash": DISPUTE.evidence_hash,
        "deadline": DISPUTE.deadline,
        "signature": hex_of(DISPUTE.sign(NODE, DOMAIN)),
    }
    good = {"document": document, "node": NODE.address, "chain_id": CHAIN, "contract": DOMAIN.contract}
    return [good], {
        "another deadline than was signed": good | {"document": document | {"deadline": DISPUTE.deadline + 1}},
        "a short key": good | {"document": document | {"key": document["key"][:-1]}},
    }


def salt_cases() -> Cases:
    slot = {field.name: getattr(SALT, field.name) for field in fields(SALT)}
    good = {"slot": slot, "chain_id": CHAIN, "contract": DOMAIN.contract, "secret_key": hex_of(SERVICE.reveal())}
    whole = {"salt": hex_of(hashlib.sha256(SALT.sign(SERVICE, DOMAIN)).digest())}
    return [good], {"hash of all 65 bytes, v included": good | {"claimed": whole}}


def webhook_cases() -> Cases:
    event = b'{"id":"1767225600000-0","time_ms":1767225600000,"kind":"node.dead","detail":"","actor":"liveness"}'
    good = {"secret": "x" * 43, "timestamp": str(AT_S), "body": hex_of(event)}
    bare = {"signature": hmac.digest(b"x" * 43, event, "sha256").hex()}
    return [good], {
        "the timestamp is not signed": good | {"claimed": bare},
        "the body was changed": good | {"body": hex_of(event + b" "), "claimed": check_webhook(good)},
    }


def call_cases() -> Cases:
    lease = [LEASE.pool_id, LEASE.run, LEASE.step, LEASE.index, LEASE.node, LEASE.version, LEASE.digest]
    lease += [LEASE.beacon_block, LEASE.salt, LEASE.groups, LEASE.max_units, LEASE.expiry]
    of_pool, of_node = hex_of(LEASE.sign(SERVICE, DOMAIN)), hex_of(WORK.sign(NODE, DOMAIN))
    invite = [INVITE.pool_id, INVITE.node, INVITE.nonce, INVITE.expiry, INVITE.url]
    joining = [invite, hex_of(INVITE.sign(SERVICE, DOMAIN)), hex_of(Join(invite_hash=INVITE.hash).sign(NODE, DOMAIN))]
    consent = [NODE.address, ZERO_DIGEST, 1, CONSENT.deadline, hex_of(CONSENT.sign(NODE, DOMAIN))]
    calls = [
        ("MusterToken", "approve", [SERVICE.address, 10**18]),
        ("StakeManager", "stake", [10**18]),
        ("ComputeRegistry", "registerNode", consent),
        ("ComputePools", "join", joining),
        ("ComputePools", "leavePool", [7, NODE.address, 0, "0x"]),
        ("WorkLedger", "submitWork", [lease, of_pool, WORK.sha256, WORK.units, of_node]),
        ("WorkLedger", "dispute", [DISPUTE.key, ZERO_DIGEST, DISPUTE.deadline, hex_of(DISPUTE.sign(NODE, DOMAIN))]),
        ("WorkLedger", "workOf", [LEASE.key.hash]),
        ("WorkLedger", "claim", [[7], PROVIDER.address]),
    ]
    accepted: list[Json] = [{"contract": on, "function": name, "arguments": arguments} for on, name, arguments in calls]
    raw = check_call(accepted[1])["data"]
    wrong = {"data": hex_of(keccak(b"stake(uint)")[:4]) + raw[10:]}
    return accepted, {"selector of stake(uint) instead of stake(uint256)": accepted[1] | {"claimed": wrong}}


def revert_cases() -> Cases:
    expired = keccak(b"LeaseExpired(uint64)")[:4] + AT_S.to_bytes(32, "big")
    taken = keccak(b"WorkExists(bytes32)")[:4] + bytes_of(LEASE.key.hash)
    bare = keccak(b"NotValidator(uint256,address)")[:4]
    return [{"data": hex_of(each)} for each in (expired, taken, bare)], {
        "no data": {"data": "0x"},
        "an unknown selector": {"data": "0x12345678"},
        "cut arguments": {"data": hex_of(expired[:20])},
    }


def _typed(made: TypedStruct, key: Key, signature: bytes) -> Json:
    names = [name for _, name in members(type(made))]
    values = [getattr(made, field.name) for field in fields(made)]  # type: ignore[arg-type]  # each is a dataclass
    message = {name: str(value) if isinstance(value, int) else value for name, value in zip(names, values, strict=True)}
    domain = {"name": "Muster", "version": "2", "chainId": DOMAIN.chain_id, "verifyingContract": DOMAIN.contract}
    return {
        "type": made.TYPE,
        "domain": domain,
        "message": message,
        "signer": key.address,
        "signature": hex_of(signature),
    }
