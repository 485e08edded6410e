"""The page that specifies the protocol agrees with the code: types, functions, numbers, names and examples."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

import pytest
from pydantic import BaseModel

from ledger.artifacts import Contract, artifact
from ledger.client.work import WorkStatus
from orchestrator.api.streams import KEEP_ALIVE_LOOKS, LOOK
from orchestrator.loops.webhooks import EVENT_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from protocol.identity.signing import REQUEST_HEADERS
from protocol.identity.typed_data import TypedStruct
from protocol.invites import Invite, Join, Leave
from protocol.leases import Dispute, Lease, ServedSlot, SlotSalt, WorkClaim
from protocol.node_registration import NodeConsent, ProviderConsent
from protocol.verdicts import Outcome, ReasonCode, reason_name
from protocol.wire.assignments import AssignmentState
from protocol.wire.base import parse_answer
from protocol.wire.federation import NodeStatementPage
from protocol.wire.heartbeat import CommandKind, Heartbeat, HeartbeatAnswer
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import NodeState, Registration
from protocol.wire.relayed import ReceiptState, SignedConsents, SignedLeave, SubmissionRequest
from protocol.wire.tasks import Assignment
from protocol.wire.uploads import UploadRequest
from protocol.wire.validators import NumericsReport
from rollouts.sampling.philox import MULTIPLIERS, WEYL
from shardcast.delta.segments import MAGIC, MOST_LENGTH, SEGMENT, Mode
from shardcast.manifest.records import Extension

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
STRUCTS: list[type[TypedStruct]] = [
    NodeConsent,
    ProviderConsent,
    Invite,
    Join,
    Leave,
    Lease,
    WorkClaim,
    Dispute,
    ServedSlot,
    SlotSalt,
]
EXAMPLES: list[type[BaseModel]] = [
    SignedInvite,
    SubmissionRequest,
    SignedConsents,
    SignedLeave,
    Registration,
    NodeStatementPage,
    Heartbeat,
    HeartbeatAnswer,
    UploadRequest,
    NumericsReport,
]


def section(title: str) -> str:
    found = re.search(rf"^#+ {title}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def abi_type(item: dict[str, object]) -> str:
    kind = str(item["type"])
    if not kind.startswith("tuple"):
        return kind
    return "(" + ",".join(abi_type(part) for part in item["components"]) + ")" + kind[5:]  # type: ignore[attr-defined]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_signed_type_is_on_the_page(struct: type[TypedStruct]) -> None:
    assert f"| `{struct.TYPE}` |" in section("Ledger signatures")
    assert len(re.findall(r"^\| `[A-Z]\w+\(", section("Ledger signatures"), re.MULTILINE)) == len(STRUCTS)


def test_every_listed_function_is_in_the_contract_beside_it() -> None:
    rows = re.findall(r"^\| (\w+) \| (`.*`.*) \| [^|]+ \|$", section("Functions for nodes and providers"), re.MULTILINE)
    assert len(rows) > 20
    for name, cell in rows:
        functions = {
            f"{entry['name']}({','.join(abi_type(item) for item in entry['inputs'])})"
            for entry in artifact(Contract(name)).abi
            if entry["type"] == "function"
        }
        listed = set(re.findall(r"`(\w+\([^`]*\))`", cell))
        assert listed
        assert listed <= functions, name


def test_the_tables_of_numbers_are_those_of_the_code() -> None:
    tables = section("Status, outcomes and reasons")
    reasons = re.findall(r"^\| (\d+) \| `([a-z0-9-]+)` \| (.+) \| (yes|no) \|$", tables, re.MULTILINE)
    assert reasons == [
        (str(int(code)), reason_name(code), code.words, "yes" if code.may_be_forgery else "no") for code in ReasonCode
    ]
    for number in [*WorkStatus, *Outcome]:
        assert f"| {int(number)} | {number.name.capitalize()}" in tables


@pytest.mark.parametrize("model", EXAMPLES, ids=lambda model: model.__name__)
def test_examples_are_valid(model: type[BaseModel]) -> None:
    found = re.search(rf"```json {model.__name__}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    strictly = model.model_validate(json.loads(found[1]))
    assert parse_answer(model, found[1]) == strictly


@pytest.mark.parametrize("names", [CommandKind, NodeState, AssignmentState, ReceiptState], ids=lambda it: it.__name__)
def test_every_state_and_command_is_named(names: type[StrEnum]) -> None:
    assert [name.value for name in names if f"`{name.value}`" not in PAGE] == []


def test_headers_fields_and_constants_are_those_of_the_code() -> None:
    headers = {*REQUEST_HEADERS, SIGNATURE_HEADER, TIMESTAMP_HEADER, EVENT_HEADER}
    assert {name for name in headers if f"| `{name}` |" not in PAGE} == set()
    assert {name for name in Assignment.model_fields if f"`{name}`" not in PAGE} == set()
    manifest = section("Manifests")
    assert {name for name in Extension.model_fields if f"`{name}`" not in manifest} == set()
    assert {f"{number:#X}".replace("X", "x") for number in (*MULTIPLIERS, *WEYL)} <= set(
        re.findall(r"0x[0-9A-F]{8}", section("Seed and sampling noise"))
    )
    deltas = section("Deltas")
    assert f"`{MAGIC.decode()}`" in deltas
    assert all(f"{mode.value} {mode.name}" in deltas for mode in Mode)
    assert (SEGMENT.size, MOST_LENGTH) == (24, 1 << 20)
    assert (KEEP_ALIVE_LOOKS * LOOK).total_seconds() == 15


def test_the_reasons_of_refused_vectors_are_explained() -> None:
    vectors = json.loads((files("protocol") / "vectors.json").read_text(encoding="utf-8"))["vectors"]
    reasons = {case["reason"].split(" ")[0] for group in vectors.values() for case in group["refused"]}
    listed = set(re.findall(r"`([a-z-]+)[ `]", section("Test vectors")))
    assert {reason for reason in reasons if not reason.startswith("malformed-")} <= listed
