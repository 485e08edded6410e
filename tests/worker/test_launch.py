"""From an assignment to a container: variables, volumes, GPUs and fingerprints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identifiers import address
from protocol.wire.base import parse_answer
from protocol.wire.nodes import Gpu
from protocol.wire.tasks import VARIABLES, Assignment, GpuNeeds
from worker.runtime.docker_arguments import creation_arguments
from worker.runtime.interface import ContainerSpec, LaunchRefused
from worker.tasks.container_spec import (
    TOKEN_VARIABLE,
    ContainerPlacement,
    InstalledGpu,
    Volumes,
    choose_gpus,
    container_spec,
    expand,
    fingerprint,
)

NODE = address("0x52908400098527886E0F7030069857D2E4169EE7")
SECRET = b"s" * 32
GPUS = tuple(
    InstalledGpu(gpu=Gpu(index=index, model=model, memory_bytes=gib << 30), uuid=f"GPU-{index}")
    for index, (model, gib) in enumerate([("H200", 141), ("H200", 141), ("RTX 4090", 24)])
)


def assignment_of(**changes: Any) -> Assignment:
    whole = {name: changes.pop(name) for name in ("generation", "secrets", "group", "restart_nonce") if name in changes}
    spec = {"name": "task", "image": "image:1", **changes}
    return Assignment.model_validate({"id": "a" * 32, "task_id": "b" * 32, "generation": 4, "spec": spec, **whole})


def made(assignment: Assignment, gpus: tuple[InstalledGpu, ...] = GPUS) -> ContainerSpec:
    volumes = Volumes(task=Path("/state/tasks/b"), shared=Path("/state/shared"), bridge=Path("/state/bridges/a"))
    placement = ContainerPlacement(node=NODE, pool_id=7, volumes=volumes, gpus=gpus, bridge_token="token")
    return container_spec(assignment, placement, fingerprint="f", number=2)


def test_every_variable_is_set_and_can_be_expanded() -> None:
    every = " ".join(f"${{{name}}}" for name in VARIABLES)
    spec = made(assignment_of(command=("sh", "-c", every), environment={"ALL": every}, gpus={"count": 1}))
    assert set(VARIABLES) <= spec.environment.keys()
    assert "$" not in spec.command[2]
    assert spec.environment["ALL"] == spec.command[2]
    assert spec.environment["MUSTER_POOL_ID"] == "7"
    assert spec.environment["MUSTER_GENERATION"] == "4"
    assert spec.environment["MUSTER_GPU_COUNT"] == "1"
    assert spec.environment[TOKEN_VARIABLE] == "token"


def test_a_container_sees_what_the_contributor_made_readable_and_may_not_change_it() -> None:
    spec, readable = made(assignment_of()), (Path("/sets/rows.jsonl"), Path("/packages"))
    arguments = creation_arguments(
        spec, node=NODE, network="net", allow_host_network=False, readable=readable, user=None
    )
    own = [mount for mount in arguments["mounts"] if mount["Source"] in map(str, readable)]
    assert [(each["Target"], each["ReadOnly"]) for each in own] == [("/sets/rows.jsonl", True), ("/packages", True)]
    assert len(arguments["mounts"]) == len(spec.mounts) + 2


def test_a_group_member_gets_its_rank_and_the_size_of_its_group() -> None:
    spec = made(assignment_of(group={"id": "c" * 32, "rank": 1, "size": 4}))
    assert [spec.environment[f"MUSTER_GROUP_{name}"] for name in ("ID", "RANK", "SIZE")] == ["c" * 32, "1", "4"]


def test_a_task_cannot_override_identity_variables() -> None:
    spec = made(assignment_of(environment={"MUSTER_NODE_ADDRESS": "0x0"}, secrets={"MUSTER_BRIDGE_TOKEN": "mine"}))
    assert spec.environment["MUSTER_NODE_ADDRESS"] == NODE
    assert spec.environment[TOKEN_VARIABLE] == "token"


def test_secrets_are_neither_expanded_nor_shown() -> None:
    spec = made(assignment_of(secrets={"KEY": "${MUSTER_POOL_ID} hunter2"}))
    assert spec.environment["KEY"] == "${MUSTER_POOL_ID} hunter2"
    assert "hunter2" not in repr(spec)


@pytest.mark.parametrize("change", [{"network": "vpn"}, {"restart": {"kind": "daily"}}])
def test_a_task_with_an_unknown_kind_of_network_or_restart_is_refused(change: dict[str, Any]) -> None:
    known = assignment_of().model_dump(mode="json")
    newer = parse_answer(Assignment, json.dumps({**known, "spec": {**known["spec"], **change}}))
    with pytest.raises(LaunchRefused, match="which this release does not know") as refused:
        made(newer)
    assert refused.value.code == "unknown-value"


@pytest.mark.parametrize("text", ["${HOME}", "$MUSTER_POOL_ID", "${MUSTER", "$${x}", "100 $"])
def test_dollar_signs_for_the_tasks_own_shell_are_kept(text: str) -> None:
    assert expand(text, {"MUSTER_POOL_ID": "7"}) == text


@pytest.mark.parametrize("text", ["${MUSTER_X}", "${MUSTER_}", "${MUSTER_POOL_ID:-1}", "a${MUSTER_pool_id}b"])
def test_an_unknown_variable_is_refused(text: str) -> None:
    with pytest.raises(LaunchRefused) as refused:
        expand(text, {"MUSTER_POOL_ID": "7"})
    assert refused.value.code == "unknown-variable"


@given(st.text(max_size=200))
def test_expansion_never_crashes_and_never_expands_twice(text: str) -> None:
    try:
        expanded = expand(text, {"MUSTER_A": "${MUSTER_A}"})
    except LaunchRefused:
        return
    assert expanded == text


def test_volumes_are_per_worker_and_one_is_the_data_volume() -> None:
    spec = made(
        assignment_of(
            volumes=[
                {"target": "/weights", "shared": True, "read_only": True},
                {"target": "/work"},
                {"target": "/more"},
            ]
        )
    )
    mounts = {mount.target: mount for mount in spec.mounts}
    assert mounts["/weights"].source == Path("/state/shared")
    assert mounts["/weights"].read_only
    assert mounts["/work"].source == Path("/state/tasks/b/data")
    assert mounts["/more"].source.parent == Path("/state/tasks/b")
    assert mounts["/muster/bridge"].read_only
    assert spec.environment["MUSTER_DATA_DIR"] == "/work"
    assert spec.environment["MUSTER_SHARED_DIR"] == "/weights"
    plain = made(assignment_of())
    assert {mount.target for mount in plain.mounts} == {"/muster/bridge", "/muster/data", "/muster/shared"}


@pytest.mark.parametrize("target", ["/", "//", "//proc", "/proc", "/sys/fs", "/dev", "/etc/ssl", "/a/../etc"])
def test_a_volume_over_a_system_directory_is_refused(target: str) -> None:
    with pytest.raises(LaunchRefused):
        made(assignment_of(volumes=[{"target": target}]))


@pytest.mark.parametrize(
    ("needs", "chosen"),
    [
        (GpuNeeds(), []),
        (GpuNeeds(count=1), [0]),
        (GpuNeeds(count=3), [0, 1, 2]),
        (GpuNeeds(count=2, memory_bytes=100 << 30), [0, 1]),
        (GpuNeeds(count=1, models=("RTX 4090",)), [2]),
        (GpuNeeds(count=3, memory_bytes=100 << 30), None),
        (GpuNeeds(count=1, models=("A100",)), None),
    ],
)
def test_suitable_gpus_are_chosen_on_mixed_machines(needs: GpuNeeds, chosen: list[int] | None) -> None:
    if chosen is None:
        with pytest.raises(LaunchRefused):
            choose_gpus(needs, GPUS)
    else:
        assert [found.gpu.index for found in choose_gpus(needs, GPUS)] == chosen


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"generation": 9}, True),
        ({"priority": 5}, True),
        ({"replicas": 3}, True),
        ({"selector": {"labels": {"a": "b"}}}, True),
        ({"restart": {"kind": "never"}}, True),
        ({"restart_nonce": 1}, True),  # a requested restart is not part of the fingerprint
        ({"image": "image:2"}, False),
        ({"environment": {"A": "1"}}, False),
        ({"secrets": {"A": "1"}}, False),
        ({"group": {"id": "c" * 32, "rank": 0, "size": 2}}, False),
        ({"resources": {"cpus": 2}}, False),
        ({"command": ("a", "b")}, False),
    ],
)
def test_only_changes_to_the_containers_definition_need_a_new_container(change: dict[str, Any], same: bool) -> None:
    assert (fingerprint(assignment_of(), secret=SECRET) == fingerprint(assignment_of(**change), secret=SECRET)) is same


def test_a_task_that_refers_to_its_generation_is_recreated_with_it() -> None:
    def print_of(generation: int) -> str:
        return fingerprint(assignment_of(generation=generation, command=("x", "${MUSTER_GENERATION}")), secret=SECRET)

    assert print_of(4) != print_of(5)


def test_a_fingerprint_does_not_reveal_secrets() -> None:
    guess = assignment_of(secrets={"PIN": "1234"})
    assert fingerprint(guess, secret=SECRET) != fingerprint(guess, secret=b"t" * 32)


def test_container_names_are_per_worker_and_short_enough_for_a_host_name() -> None:
    spec = made(assignment_of())
    assert spec.name == f"muster-{NODE[2:].lower()}-aaaaaaaaaaaa-2"
    assert len(spec.name) <= 64
