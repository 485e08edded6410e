"""The place of a process in a mesh and its device, with errors where they are invalid."""

from __future__ import annotations

import pytest
import torch

from protocol.errors import InvalidInput
from trainer.distributed.ranks import RankInfo, device_of, own_place
from trainer.errors import BadSettings

SET = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
SECOND = RankInfo(processes=4, rank=3, local_processes=2, local_rank=1)


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": " 1 "}])
def test_a_single_process_has_no_place(environment: dict[str, str]) -> None:
    assert own_place(environment) is None


def test_each_process_reads_its_place_from_torchrun() -> None:
    assert own_place(SET) == SECOND
    assert not SECOND.leads
    first = own_place(SET | {"RANK": "0", "LOCAL_RANK": "0"})
    assert first is not None
    assert first.leads


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, and RANK is not set"),
        ({name: value for name, value in SET.items() if name != "MASTER_PORT"}, "MASTER_PORT is not set"),
        (SET | {"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many', not a number"),
        (SET | {"RANK": "4"}, "rank 4 of 4,"),
        (SET | {"LOCAL_RANK": "2"}, "rank 2 of 2 on this machine"),
        (SET | {"LOCAL_WORLD_SIZE": "5"}, "1 of 5 on this machine"),
        (SET | {"WORLD_SIZE": "0"}, "rank 3 of 0,"),
    ],
    ids=["alone", "no-port", "words", "rank", "local-rank", "more-here-than-in-total", "none"],
)
def test_an_incomplete_torchrun_environment_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        own_place(environment)


@pytest.mark.parametrize(
    ("name", "devices", "words"),
    [
        ("cuda", 0, "this machine has no device cuda"),
        ("cuda:0", 2, "2 processes on this machine can't share cuda:0"),
        ("cuda", 1, "this machine has 1 accelerators, and torchrun started 2 processes on it"),
        (None, 1, "this machine has 1 accelerators"),
        ("mps", 0, "several processes can't train on mps"),
        ("tpu-ish", 0, "is not a device"),
    ],
    ids=["no-device", "one-for-all", "too-few", "too-few-by-default", "other", "nonsense"],
)
def test_a_missing_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str | None, devices: int, words: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(InvalidInput, match=words):
        device_of(name, SECOND)


def test_each_process_on_a_machine_uses_its_own_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(None, SECOND) == torch.device("cuda", 1)
    assert device_of("cuda:1") == torch.device("cuda", 1), "a single process may use any device"
    assert device_of("cpu", SECOND) == torch.device("cpu")
