"""The devnet's run: slots are leased, a real model generates, files are proven, carried, downloaded and held up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollouts.samples import RolloutFile
from rollouts.schema import read_rollouts, write_rollouts
from tests.e2e.conftest import Devnet, Said, run_muster, start_devnet, stop_devnet, wait_until


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    """A whole devnet whose two workers generate in the process sandbox."""
    directory = tmp_path_factory.mktemp("devnet") / "net"
    process = start_devnet(directory, "--workers", "2", "--runtime", "process")
    try:
        yield Devnet(process, directory)
    finally:
        assert stop_devnet(process) == 0


def verify(network: Devnet, file: Path, *, beacon: str, units: int) -> Said:
    model = str(network.directory / "policies" / "0")
    return run_muster("rollouts", "verify", str(file), "--model", model, "--beacon", beacon, "--units", str(units))


def test_a_file_goes_its_whole_way_and_stands_up_to_every_check(network: Devnet, tmp_path: Path) -> None:
    muster = network.muster
    listed = muster("pool", "rollouts", "--json").json()
    assert len({item["node"] for item in listed}) == 2
    assert {item["status"] for item in listed} <= {"submitted"}
    first = listed[0]
    assert first["figures"]["samples"] == first["groups"] * 16

    found = muster("pool", "download", first["key"][:12], "--to", str(tmp_path), "--json").json()
    file = read_rollouts(Path(found["file"]))
    assert (file.header.node, file.header.checkpoint) == (first["node"], first["digest"])
    assert file.units == first["units"]
    said = verify(network, Path(found["file"]), beacon=found["beacon"], units=file.units)
    assert said.code == 0, said.out + said.err

    # The same file, better paid: named for what it is.
    best = replace(file.samples[0], task_reward=1 - file.samples[0].task_reward, reward=1 - file.samples[0].reward)
    tampered = tmp_path / "tampered.parquet"
    write_rollouts(tampered, RolloutFile(file.header, (best, *file.samples[1:])))
    said = verify(network, tampered, beacon=found["beacon"], units=file.units)
    assert said.code == 1
    assert "reward" in said.out

    shown = run_muster("rollouts", "show", found["file"], "--model", str(network.directory / "policies" / "0"))
    assert shown.code == 0, shown.err


def test_the_policy_came_over_relays_and_the_run_tells_where_it_stands(network: Devnet) -> None:
    muster = network.muster
    run = muster("pool", "progress", "--json").json()
    digest = run["checkpoint"]["digest"]
    assert len(run["checkpoint"]["relays"]) == 2
    for worker in ("worker-1", "worker-2"):
        shared = network.directory / "workers" / worker
        wait_until(lambda shared=shared: bool(list(shared.rglob(f"checkpoints/{digest}/model.safetensors"))))
    wait_until(lambda: sum(step["pending"] for step in muster("pool", "progress", "--json").json()["steps"]) >= 32)
    assert "tokens-per-second" in muster("pool", "node", "worker-1").out
