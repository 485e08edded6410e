"""Checks of the test vectors: from a case's `input` to its `output`, or an error if the case is refused.

They call the product's own code.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import fields
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from web3 import Web3

from ledger.artifacts import Contract, artifact
from ledger.client.audits import commitment_of
from ledger.rpc.revert_decoder import RevertReader
from orchestrator.loops.webhooks import signature_of
from protocol.checkpoints import VersionFile, version_digest
from protocol.http.verification import check_clock
from protocol.identifiers import address, run_id
from protocol.identity.keys import Key
from protocol.identity.signing import (
    check_response,
    check_signature,
    read_stamp,
    request_message,
    response_message,
)
from protocol.identity.typed_data import SigningDomain, TypedStruct
from protocol.invites import Invite, Join, Leave
from protocol.leases import Dispute, Lease, ServedSlot, SlotSalt, WorkClaim, WorkKey
from protocol.node_registration import NodeConsent, ProviderConsent
from protocol.versions import SPOKEN, VersionRange
from protocol.wire.federation import NodeStatement
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import SignedLease, SignedWorkClaim
from protocol.wire.relayed import SignedDispute
from protocol.wire.served import SignedServedList, answer_digest
from protocol.wire.uploads import ObjectKey
from rollouts.sampling.noise import noise_at, row_keys, stream, words
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.seeded_draw import draw_seeded
from rollouts.seeds import draw_targets, prompt_positions, slot_seed
from rollouts.toploc import proofs_of, verify_rows
from shardcast.delta import apply_delta
from shardcast.manifest.manifest import Manifest, VersionKey
from tests.kit.vectors.sample_values import (
    DOMAIN,
    Json,
    Refused,
    bytes_of,
    float_hex,
    hex_of,
    members,
    plain,
    unless_claimed,
    value_of,
)
from validator.audit.draw import RowDraw, draw_rows, row_seed

# Keys, ids and numbers


def check_address(given: Json) -> Json:
    if address(given["text"]) != given["text"]:
        raise Refused("not-checksummed")
    return {"bytes": given["text"].lower()}


def check_run_id(given: Json) -> Json:
    return {"id": run_id(given["name"])}


def check_work_key(given: Json) -> Json:
    key = WorkKey(**{name: given[name] for name in ("pool_id", "run", "node", "step", "index")})
    return unless_claimed(given, {"key": key.hash})


def check_version_digest(given: Json) -> Json:
    return {"digest": version_digest([VersionFile(**file) for file in given["files"]])}


def check_object_key(given: Json) -> Json:
    key = ObjectKey.parse(given["text"])
    return {"pool_id": key.pool_id, "owner": key.owner, "sha256": key.sha256, "audit": key.audit}


def check_protocol_version(given: Json) -> Json:
    return {"version": SPOKEN.agree(VersionRange.parse(given["header"]))}


# Signatures


def check_request(given: Json) -> Json:
    stamp, body = read_stamp(given["headers"]), bytes_of(given["body"])
    check_clock(stamp, now=datetime.fromtimestamp(given["receiver_time_ms"] / 1000, UTC))
    sha256 = hashlib.sha256(body).hexdigest()
    check_signature(stamp, method=given["method"], target=given["target"], body_sha256=sha256)
    if stamp.audience != given["receiver"]:
        raise Refused("wrong-audience")
    message = request_message(
        audience=stamp.audience,
        method=given["method"],
        target=given["target"],
        body_sha256=sha256,
        timestamp_ms=stamp.timestamp_ms,
        nonce=stamp.nonce,
    )
    return {"signer": stamp.address, "message": message.decode()}


def check_answer(given: Json) -> Json:
    body = bytes_of(given["body"])
    check_response(
        given["headers"],
        service=given["service"],
        address=given["caller"],
        nonce=given["nonce"],
        status=given["status"],
        body=body,
    )
    sha256 = hashlib.sha256(body).hexdigest()
    message = response_message(
        address=given["caller"], nonce=given["nonce"], status=given["status"], body_sha256=sha256
    )
    return {"message": message.decode()}


STRUCTS: dict[str, type[TypedStruct]] = {
    each.TYPE.partition("(")[0]: each
    for each in (NodeConsent, ProviderConsent, Invite, Join, Leave, Lease, WorkClaim, Dispute, SlotSalt, ServedSlot)
}


def check_typed_data(given: Json) -> Json:
    kind = STRUCTS[given["type"].partition("(")[0]]
    values = [value_of(given["message"][name], of) for of, name in members(kind)]
    made = kind(**{field.name: value for field, value in zip(fields(kind), values, strict=True)})  # type: ignore[arg-type]
    domain = SigningDomain(given["domain"]["chainId"], address(given["domain"]["verifyingContract"]))
    if made.signer(bytes_of(given["signature"]), domain) != given["signer"]:
        raise Refused("other-signer")
    return {"struct_hash": hex_of(made.struct_hash()), "signing_hash": hex_of(made.signing_hash(domain))}


def check_invite(given: Json) -> Json:
    invite = SignedInvite.model_validate(given["document"])
    if invite.signer() != given["orchestrator"]:
        raise Refused("other-signer")
    return {"struct_hash": invite.invite.hash}


def check_node_statement(given: Json) -> Json:
    statement = NodeStatement.model_validate(given["document"])
    statement.check()
    return {"removal": statement.body is None}


def check_lease(given: Json) -> Json:
    lease = SignedLease.model_validate(given["document"])
    if lease.lease.signer(lease.raw_signature, lease.domain) != given["orchestrator"]:
        raise Refused("other-signer")
    return {"struct_hash": lease.lease.hash, "work_key": lease.lease.key.hash}


def check_claim(given: Json) -> Json:
    claim = SignedWorkClaim.model_validate(given["document"])
    if claim.work.signer(claim.raw_signature, claim.lease.domain) != claim.lease.node:
        raise Refused("other-signer")
    if claim.units > claim.lease.max_units:
        raise Refused("too-many-units")
    return {"struct_hash": hex_of(claim.work.struct_hash())}


def check_served_list(given: Json) -> Json:
    sent = SignedServedList.model_validate(given["document"])
    if sent.signer(work_key=given["work_key"], domain=DOMAIN) != given["gateway"]:
        raise Refused("other-signer")
    return {
        "list_hash": hex_of(hashlib.sha256(sent.content.encode()).digest()),
        "requests": len(sent.parse().requests),
    }


def check_answer_digest(given: Json) -> Json:
    return unless_claimed(given, {"digest": answer_digest([(text, tokens) for text, tokens in given["choices"]])})


def check_dispute(given: Json) -> Json:
    sent = SignedDispute.model_validate(given["document"])
    made = Dispute(key=sent.key, evidence_hash=sent.evidence_hash, deadline=sent.deadline)
    if made.signer(bytes_of(sent.signature), DOMAIN) != given["node"]:
        raise Refused("other-signer")
    return {"struct_hash": hex_of(made.struct_hash())}


def check_salt(given: Json) -> Json:
    slot = SlotSalt(**{field.name: given["slot"][field.name] for field in fields(SlotSalt)})
    domain = SigningDomain(given["chain_id"], given["contract"])
    return unless_claimed(given, {"salt": slot.derive(Key(bytes_of(given["secret_key"])), domain)})


def check_webhook(given: Json) -> Json:
    made = signature_of(given["secret"].encode(), timestamp=given["timestamp"], body=bytes_of(given["body"]))
    return unless_claimed(given, {"signature": made})


# Contracts


def check_call(given: Json) -> Json:
    contract = Web3().eth.contract(abi=artifact(Contract(given["contract"])).abi)
    return unless_claimed(given, {"data": contract.encode_abi(given["function"], args=given["arguments"])})


def check_revert(given: Json) -> Json:
    found = RevertReader(artifact(contract).abi for contract in Contract).read(bytes_of(given["data"]))
    if not found.name:
        raise Refused("unknown-error")
    return {"error": found.name, "arguments": {name: plain(value) for name, value in found.arguments.items()}}


# Seeds and sampling


def check_seed(given: Json) -> Json:
    return {"seed": hex_of(slot_seed(**given))}


def check_prompts(given: Json) -> Json:
    positions = prompt_positions(bytes_of(given["seed"]), given["eligible"])
    return {"positions": list(islice(positions, given["groups"]))}


def check_targets(given: Json) -> Json:
    return {"targets": draw_targets(bytes_of(given["seed"]), given["targets"], given["groups"])}


def check_noise(given: Json) -> Json:
    keys = row_keys([stream(bytes_of(given["seed"]), given["sample"])], [given["position"]])
    token = given["token"]
    word, noise = words(keys, token + 1)[0, token], noise_at(keys, np.asarray([token], dtype=np.int64))[0]
    return {"word": f"0x{int(word):08x}", "noise_float32": float_hex(noise)}


def check_draw(given: Json) -> Json:
    parameters = SamplingParameters(
        max_new_tokens=1, temperature=given["temperature"], top_p=given["top_p"], top_k=given["top_k"]
    )
    keys = row_keys([stream(bytes_of(given["seed"]), given["sample"])], [given["position"]])
    drawn = draw_seeded(torch.tensor([given["logits"]], dtype=torch.float32), keys, parameters)
    return {"token": int(drawn.tokens[0])}


def check_proof(given: Json) -> Json:
    states = torch.tensor(given["states"], dtype=torch.float32)
    proof = bytes_of(given["proof"]) if "proof" in given else proofs_of(states)
    for result in verify_rows([(states, proof)])[0]:
        if result.malformed is not None:
            raise Refused(f"malformed-{result.malformed.value}")
        if result.distance_total:
            raise Refused("other-states")
    return {"proof": hex_of(proof)}


def check_audit_draw(given: Json) -> Json:
    secret = bytes_of(given["secret"])
    commitment = commitment_of(
        pool_id=given["pool_id"], validator=given["validator"], epoch=given["epoch"], secret=secret
    )
    if commitment != given["commitment"]:
        raise Refused("other-secret")
    seed = row_seed(secret, given["work_key"], given["block_hash"])
    rows = draw_rows(RowDraw(seed=seed, share=given["share_bps"] / 10_000), given["rows"])
    return {"seed": hex_of(seed), "rows": list(rows)}


# Versions of the policy


def check_manifest(given: Json) -> Json:
    key = VersionKey(given["version"], given["attempt"])
    manifest = Manifest(run=given["run"], key=key, signer=given["publisher"])
    hashes = []
    for line in given["lines"]:
        manifest.read(line.encode())
        hashes.append(manifest.head)
    if not manifest.sealed:
        raise Refused("not-sealed")
    return {"hashes": hashes, "digest": manifest.digest}


def check_delta(given: Json) -> Json:
    with tempfile.TemporaryDirectory() as folder:
        base, delta, target = (Path(folder) / name for name in ("base", "delta", "target"))
        base.write_bytes(bytes_of(given["base"]))
        delta.write_bytes(bytes_of(given["delta"]))
        sha256 = apply_delta(base=base, delta=delta, target=target, size=given["target_size"])
        return {"target": hex_of(target.read_bytes()), "sha256": sha256}
