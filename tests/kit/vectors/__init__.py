"""Makes `protocol/vectors.json`: accepted and refused cases of every signature and byte format of the protocol.

`python -m tests.kit.vectors` writes the file. A check computes a case's output, or refuses the case, with the product's
code. So a change of the product's results shows as a change of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from protocol.errors import MusterError
from tests.kit.vectors import checks, formats, signatures
from tests.kit.vectors.sample_values import NODE, OTHER, PROVIDER, SERVICE, Cases, Json, Refused, hex_of

PATH = Path(__file__).parents[3] / "protocol" / "vectors.json"

GROUPS: dict[str, tuple[str, Callable[[Json], Json], Callable[[], Cases]]] = {
    "address": ("Checksummed spelling of an address (EIP-55)", checks.check_address, signatures.address_cases),
    "run-id": ("Id of a run from its name", checks.check_run_id, signatures.run_id_cases),
    "work-key": ("Key of a piece of work", checks.check_work_key, signatures.work_key_cases),
    "version-digest": (
        "Digest of a version from its files, given in any order",
        checks.check_version_digest,
        signatures.version_digest_cases,
    ),
    "object-key": ("Name of a file in the pool's store", checks.check_object_key, signatures.object_key_cases),
    "protocol-version": (
        "Value of X-Muster-Version, answered by a service of version 1",
        checks.check_protocol_version,
        signatures.protocol_version_cases,
    ),
    "request-signature": (
        "Signed HTTP request, as `receiver` checks it at `receiver_time_ms`",
        checks.check_request,
        signatures.request_cases,
    ),
    "response-signature": ("Signed answer to a request of `caller`", checks.check_answer, signatures.answer_cases),
    "typed-data": ("EIP-712 struct; integers as decimal strings", checks.check_typed_data, signatures.typed_data_cases),
    "signed-invite": ("Invite as JSON", checks.check_invite, signatures.invite_cases),
    "node-statement": (
        "Registration or removal of a node, as discovery services pass it on; any body counts here",
        checks.check_node_statement,
        signatures.node_statement_cases,
    ),
    "signed-lease": ("Lease as JSON", checks.check_lease, signatures.lease_cases),
    "signed-work-claim": ("Work claim with its lease as JSON", checks.check_claim, signatures.claim_cases),
    "served-list": (
        "Signed list of a served slot's requests",
        checks.check_served_list,
        signatures.served_list_cases,
    ),
    "answer-digest": (
        "Digest of what a client of a gateway got: text and tokens of each choice",
        checks.check_answer_digest,
        signatures.answer_digest_cases,
    ),
    "signed-dispute": ("Dispute as JSON", checks.check_dispute, signatures.dispute_cases),
    "slot-salt": (
        "Salt of a slot, which the orchestrator derives from its key",
        checks.check_salt,
        signatures.salt_cases,
    ),
    "webhook-signature": ("Header X-Muster-Webhook-Signature", checks.check_webhook, signatures.webhook_cases),
    "contract-call": ("Call data of a contract's function", checks.check_call, signatures.call_cases),
    "revert-data": (
        "Revert data of a contract; a bare selector is what events of refused items contain",
        checks.check_revert,
        signatures.revert_cases,
    ),
    "slot-seed": ("Seed of a slot", checks.check_seed, formats.seed_cases),
    "prompt-positions": (
        "Positions of a slot's prompts in the table of eligible prompts",
        checks.check_prompts,
        formats.prompt_cases,
    ),
    "target-lengths": ("Target lengths of a slot's groups", checks.check_targets, formats.target_cases),
    "sampling-noise": (
        "Philox word and Gumbel noise; the noise may differ by one unit in the last place",
        checks.check_noise,
        formats.noise_cases,
    ),
    "sampled-token": ("Token that seed and logits select", checks.check_draw, formats.draw_cases),
    "toploc-proof": (
        "TOPLOC proofs of final hidden states, one row per token",
        checks.check_proof,
        formats.proof_cases,
    ),
    "audit-draw": (
        "Rows that a validator recomputes, once its secret is revealed",
        checks.check_audit_draw,
        formats.audit_cases,
    ),
    "manifest": ("Manifest of a version, line by line", checks.check_manifest, formats.manifest_cases),
    "delta": ("Delta of a file; payloads are zstd frames with one raw block", checks.check_delta, formats.delta_cases),
}


def generate() -> Json:
    """Returns the content of `protocol/vectors.json`."""
    keys = {
        "node": NODE,
        "service": SERVICE,
        "provider": PROVIDER,
        "other": OTHER,
    }
    vectors = {name: _group(note, check, cases) for name, (note, check, cases) in GROUPS.items()}
    return {
        "format": 1,
        "about": "Test vectors of Muster's protocol; docs/protocol.md describes them.",
        "keys": {name: {"secret": hex_of(key.reveal()), "address": key.address} for name, key in keys.items()},
        "vectors": vectors,
    }


def reason(check: Callable[[Json], Json], given: Json) -> str:
    """Returns the reason why a case is refused; empty if it is accepted.

    The reason is an error code of the product, `malformed-field NAME`, or the text of a `Refused`.
    """
    try:
        check(given)
    except MusterError as error:
        return error.code
    except Refused as error:
        return str(error)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        return f"malformed-field {where}".strip()
    return ""


def _group(note: str, check: Callable[[Json], Json], cases: Callable[[], Cases]) -> Json:
    accepted, refused = cases()
    return {
        "note": note,
        "accepted": [{"input": given, "output": check(given)} for given in accepted],
        "refused": [{"what": what, "input": given, "reason": reason(check, given)} for what, given in refused.items()],
    }


def written(content: Json) -> str:
    """Returns the text of the file, with one case per line so that a change is readable."""

    def listed(cases: list[Json]) -> str:
        return "[\n" + ",\n".join(f"    {json.dumps(case, ensure_ascii=False)}" for case in cases) + "\n   ]"

    head = [f' "{name}": {json.dumps(value)},\n' for name, value in content.items() if name != "vectors"]
    groups = [
        f'  "{name}": {{\n   "note": {json.dumps(group["note"])},\n   "accepted": {listed(group["accepted"])},\n'
        f'   "refused": {listed(group["refused"])}\n  }}'
        for name, group in content["vectors"].items()
    ]
    return "{\n" + "".join(head) + ' "vectors": {\n' + ",\n".join(groups) + "\n }\n}\n"
