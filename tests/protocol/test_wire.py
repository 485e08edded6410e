"""Wire models: bounds, unknown fields and hidden secrets."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from pydantic import BaseModel, PydanticUserError, ValidationError

from protocol.http.client import BadAnswer, ServiceResponse
from protocol.wire.base import SignedModel, WireModel, parse_answer
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer
from protocol.wire.leases import MOST_UNITS, SignedLease
from protocol.wire.mailbox import InviteList
from protocol.wire.nodes import Registration
from protocol.wire.slots import SlotGrant
from protocol.wire.tasks import Assignment, NewTask, TaskSpec, Volume
from tests.kit.wire_examples import DOMAIN, KEY, LEASE

ROOT = Path(__file__).parents[2]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]

HARDWARE: dict[str, Any] = {
    "cpu_model": "x",
    "cpu_cores": 2,
    "architecture": "x86_64",
    "memory_bytes": 1,
    "disk_free_bytes": 1,
}
SOFTWARE: dict[str, Any] = {
    "worker_version": "0.1.0",
    "protocol_version": 1,
    "operating_system": "Linux",
    "runtimes": ["docker"],
}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Has Spaces"},
        {"name": "a" * 64},
        {"image": "UPPER case"},
        {"image": "-v"},
        {"image": "x@sha256:12"},
        {"replicas": 0},
        {"replicas": "some"},
        {"priority": 101},
        {"resources": {"memory_bytes": 1}},
        {"resources": {"cpus": -1}},
        {"environment": {"BAD-NAME": "x"}},
        {"environment": {"X": "nul\0"}},
        {"environment": {"X\n": "x"}},
        {"environment": {"X=Y": "x"}},
        {"entrypoint": ["nul\0"]},
        {"command": ["nul\0"]},
        {"image": "python:3.11\n"},
        {"name": "ok\n"},
        {"selector": {"labels": {"zone\n": "a"}}},
        {"selector": {"labels": {"zone": "a\nb"}}},
        {"selector": {"architecture": "x86_64\n"}},
        {"gpus": {"models": ["H100\n"]}},
        {"volumes": [{"target": "relative"}]},
        {"volumes": [{"target": "/data\nx"}]},
        {"volumes": [{"target": "/data\n"}]},
        {"volumes": [{"target": "/\x1b[2Jdata"}]},
        {"volumes": [{"target": "/data\x7f"}]},
        {"volumes": [{"target": "/data"}, {"target": "/data/"}]},
        {"volumes": [{"target": "/data", "source": "/etc"}]},
        {"unknown": 1},
        {"network": "everything"},
    ],
)
def test_an_invalid_task_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TaskSpec.model_validate({"name": "ok", "image": "python:3.11", **change})


@pytest.mark.parametrize("image", ["python", "python:3.11", "ghcr.io/a/b:tag", "host:5000/a@sha256:" + "0" * 64])
def test_any_image_reference_is_accepted(image: str) -> None:
    assert TaskSpec(name="ok", image=image).image == image


def test_secrets_are_serialised_but_never_shown_in_text_or_errors() -> None:
    task = NewTask.model_validate({"spec": {"name": "a", "image": "b"}, "secrets": {"TOKEN": "hunter2"}})
    assert "hunter2" not in repr(task)
    assert "hunter2" not in str(task.model_dump())
    assert NewTask.model_validate_json(task.model_dump_json()).secrets["TOKEN"].get_secret_value() == "hunter2"
    with pytest.raises(ValidationError) as caught:
        NewTask.model_validate({"spec": {"name": "a", "image": "b"}, "secrets": {"BAD NAME": "hunter2"}})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"secrets": {"TOKEN": "hunter2\0"}},
        {"secrets": {"TOKEN\n": "hunter2"}},
        {"registry": {"username": "u", "password": "hunter2\0"}},
        {"registry": {"username": "u\n", "password": "hunter2"}},
    ],
)
def test_an_invalid_secret_is_refused_without_being_repeated(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        NewTask.model_validate({"spec": {"name": "a", "image": "b"}, **change})
    assert "hunter2" not in str(caught.value)


def test_commands_and_values_may_have_several_lines() -> None:
    script = "set -e\n\tpython train.py\n"
    spec = TaskSpec(name="a", image="b", command=("sh", "-c", script), environment={"SCRIPT": script})
    assert TaskSpec.model_validate_json(spec.model_dump_json()).command[2] == script


def test_an_assignment_survives_serialisation() -> None:
    assignment = Assignment.model_validate(
        {
            "id": "0" * 32,
            "task_id": "1" * 32,
            "generation": 1,
            "spec": TaskSpec(name="a", image="b", volumes=(Volume(target="/data"),)),
            "secrets": {"A": "b"},
            "registry": {"username": "u", "password": "p"},
        }
    )
    assert Assignment.model_validate_json(assignment.model_dump_json()) == assignment


@pytest.mark.parametrize(
    "change",
    [
        {"pool_id": 0},
        {"address": "0x0000000000000000000000000000000000000001"},
        {"metrics": {f"m{i}": 0.0 for i in range(65)}},
        {"acknowledged": ["0" * 32] * 17},
        {"worker_version": "x" * 201},
    ],
)
def test_a_heartbeat_contains_no_node_address_and_is_bounded(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Heartbeat.model_validate({"pool_id": 1, "worker_version": "0.1.0", **change})


@pytest.mark.parametrize(
    "change",
    [{"hardware": {**HARDWARE, "cpu_cores": 0}}, {"software": {**SOFTWARE, "runtimes": []}}, {"labels": {"UP": "x"}}],
)
def test_an_invalid_registration_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Registration.model_validate({"pool_id": 1, "hardware": HARDWARE, "software": SOFTWARE, **change})


def test_a_lease_survives_serialisation() -> None:
    wire = SignedLease.of(LEASE, domain=DOMAIN, signature=LEASE.sign(KEY, DOMAIN))
    again = SignedLease.model_validate_json(wire.model_dump_json())
    assert (again.lease, again.domain) == (LEASE, DOMAIN)
    assert again.lease.signer(again.raw_signature, DOMAIN) == KEY.address


def test_a_lease_of_contract_version_1_is_refused_with_both_versions() -> None:
    wire = SignedLease.of(LEASE, domain=DOMAIN, signature=LEASE.sign(KEY, DOMAIN)).model_dump()
    former = {name: value for name, value in wire.items() if name not in {"salt", "beacon_block"}}
    with pytest.raises(ValidationError, match="this lease is for contracts of version 1; this release needs version 2"):
        SignedLease.model_validate(former)


@pytest.mark.parametrize("change", [{"max_units": MOST_UNITS + 1}, {"salt": "0x00"}, {"beacon_block": -1}], ids=str)
def test_a_lease_outside_the_ledgers_ranges_is_refused(change: dict[str, Any]) -> None:
    wire = SignedLease.of(LEASE, domain=DOMAIN, signature=LEASE.sign(KEY, DOMAIN)).model_dump()
    with pytest.raises(ValidationError):
        SignedLease.model_validate({**wire, **change})


ASSIGNMENT: dict[str, Any] = {
    "id": "0" * 32,
    "task_id": "1" * 32,
    "generation": 1,
    "spec": {"name": "a", "image": "b", "resources": {"cpus": 1.0}},
}


def test_unknown_fields_in_an_answer_are_ignored_at_every_depth() -> None:
    plain = {"state": "healthy", "assignment": ASSIGNMENT, "next_interval_seconds": 5, "server_time_ms": 1}
    resources = {**ASSIGNMENT["spec"]["resources"], "later": 1}
    spec = {**ASSIGNMENT["spec"], "resources": resources, "later": {"deep": [1]}}
    newer = {**plain, "later": "x", "assignment": {**ASSIGNMENT, "spec": spec, "later": 2}}
    read = ServiceResponse(200, httpx.Headers(), json.dumps(newer).encode()).read(HeartbeatAnswer)
    assert read == HeartbeatAnswer.model_validate(plain)
    with pytest.raises(ValidationError, match="later"):
        HeartbeatAnswer.model_validate(newer)


def test_an_unknown_field_in_signed_data_is_refused_in_answers() -> None:
    lease = SignedLease.of(LEASE, domain=DOMAIN, signature=LEASE.sign(KEY, DOMAIN)).model_dump(mode="json")
    grant = {"lease": lease, "beacon": "0x" + "0d" * 32}
    assert parse_answer(SlotGrant, json.dumps({**grant, "later": 1})).lease.lease == LEASE
    newer = json.dumps({**grant, "lease": {**lease, "until_block": 9}}).encode()
    with pytest.raises(BadAnswer, match="does not know the signed fields until_block: upgrade Muster"):
        ServiceResponse(200, httpx.Headers(), newer).read(SlotGrant)


def wire_models(base: type[WireModel]) -> list[type[WireModel]]:
    """Imports all modules with wire models; returns the subclasses of `base`."""
    for path in sorted(ROOT.glob("*/**/*.py")):
        if path.parts[len(ROOT.parts)] in PACKAGES and re.search(r"(Wire|Signed)Model\):", path.read_text()):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return subclasses(base)


def subclasses(base: type[WireModel]) -> list[type[WireModel]]:
    return [inner for model in base.__subclasses__() for inner in (model, *subclasses(model))]


def test_the_definition_of_every_model_is_correct() -> None:
    """Models are built when they are first used, so an import alone does not find a wrong definition."""
    models = wire_models(WireModel)
    assert {"NodeViewPage", "Shard", "LogPage", "StatusView"} <= {model.__name__ for model in models}
    for model in models:
        model.model_rebuild()
        assert model.__pydantic_complete__, model

    class Wrong(WireModel):
        field: ServiceResponse

    with pytest.raises(PydanticUserError):
        Wrong.model_rebuild()


def test_every_model_inside_signed_data_is_strict() -> None:
    signed = list(wire_models(SignedModel))
    assert {"SignedLease", "SignedExtension"} <= {model.__name__ for model in signed}
    assert [model for model in signed for inner in models_in(model) if not issubclass(inner, SignedModel)] == []


def models_in(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Returns the models in the fields of a model, at any depth."""
    for field in model.model_fields.values():
        waiting: list[Any] = [field.annotation]
        while waiting:
            found = waiting.pop()
            waiting += get_args(found)
            if isinstance(found, type) and issubclass(found, BaseModel):
                yield found
                yield from models_in(found)


def test_json_schemas_of_answers_allow_extra_fields_and_those_of_requests_do_not() -> None:
    answer, request = HeartbeatAnswer.model_json_schema(mode="serialization"), Heartbeat.model_json_schema()
    assert "additionalProperties" not in answer
    assert "additionalProperties" not in answer["$defs"]["Assignment"]
    assert request["additionalProperties"] is False
    signed = InviteList.model_json_schema(mode="serialization")["$defs"]["SignedInvite"]
    assert signed["additionalProperties"] is False
