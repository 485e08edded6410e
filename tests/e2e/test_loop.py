"""The whole loop: a policy learns from strangers' rollouts, and a forger loses stake and membership."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.devnet.recorder import read_progress
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import read_rollouts, write_rollouts
from tests.kit.devnet import Devnet, Said, run_muster, start_devnet, stop_devnet, wait_until
from tests.kit.prometheus import DASHBOARDS, dashboard_queries, run_prometheus

PATIENCE = 240.0
"""Seconds allowed for waits that take about twenty on an idle machine."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    """Runs a devnet with an honest worker and one that writes higher rewards into its files, for many steps."""
    directory = tmp_path_factory.mktemp("devnet") / "net"
    process = start_devnet(
        directory, "--workers", "1", "--cheat", "reward-tampered", "--steps", "10000", "--runtime", "process"
    )
    try:
        yield Devnet(process, directory)
    finally:
        if process.poll() is None:
            assert stop_devnet(process) == 0
    # Ctrl-C in the middle of a run: the report covers the run so far
    report = (directory / "report" / "report.txt").read_text()
    assert "none of" in report
    assert "evicted" in report


def verify(network: Devnet, file: Path, *, version: int, parts: dict[str, str], units: int) -> Said:
    model = str(network.directory / "policies" / str(version))
    seed = [text for name, value in parts.items() for text in (name, value)]
    return run_muster("rollouts", "verify", str(file), "--model", model, *seed, "--units", str(units))


def learned(network: Devnet) -> int:
    """Returns the number of steps that the trainer has learned."""
    return sum(line["kind"] == "step" for line in read_progress(network.directory / "trainer" / "progress.jsonl"))


def test_the_policy_learns_from_honest_work_and_the_forger_loses_stake_and_membership(network: Devnet) -> None:
    muster = network.muster
    keys = {name: muster("keys", "show", name, "--json").json()["address"] for name in ("cheater", "worker-1")}
    wait_until(lambda: learned(network) >= 2, within=PATIENCE)
    run = muster("pool", "progress", "--json").json()
    assert run["checkpoint"]["version"] >= 1
    assert len(run["checkpoint"]["relays"]) == 2

    wait_until(lambda: not muster("node", "show", "cheater", "--json").json()["member"], within=PATIENCE)
    listed = muster("work", "list", "--json").json()
    assert {row["verdict"] for row in listed if row["node"] == keys["cheater"]} == {"forged"}
    assert "forged" not in {row["verdict"] for row in listed if row["node"] != keys["cheater"]}
    assert int(muster("stake", "status", "cheater-provider", "--json").json()["active"]) < 100 * 10**18
    assert int(muster("stake", "status", "worker-1-provider", "--json").json()["active"]) == 100 * 10**18


@pytest.mark.needs_prometheus
def test_every_query_of_the_dashboards_returns_series(network: Devnet, tmp_path: Path) -> None:
    ports = json.loads((network.directory / "ports.json").read_text())
    jobs = {
        job: [port for name, port in ports.items() if name.partition("-")[0] in {job, also}]
        for job, also in (
            *((each, each) for each in ("discovery", "orchestrator", "validator", "trainer", "origin", "relay")),
            ("worker", "cheater"),
        )
    }
    assert all(jobs.values()), jobs
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    empty = {
        f"{board['title']}: {place}": query
        for board in boards
        for place, query in dashboard_queries(board, interval="30s").items()
    }
    assert len(empty) > 60
    with run_prometheus(tmp_path, jobs) as prometheus:

        def all_have_series() -> bool:
            for place in [place for place, query in empty.items() if prometheus.query(query)]:
                del empty[place]
            return not empty

        try:
            wait_until(all_have_series, within=PATIENCE)
        except AssertionError as late:
            raise AssertionError(f"these queries returned no series: {empty}") from late


def test_an_honest_file_passes_every_check_and_a_copy_with_higher_rewards_fails(
    network: Devnet, tmp_path: Path
) -> None:
    muster = network.muster
    honest = muster("keys", "show", "worker-1", "--json").json()["address"]
    wait_until(
        lambda: any(item["node"] == honest for item in muster("pool", "rollouts", "--json").json()), within=PATIENCE
    )
    first = next(item for item in muster("pool", "rollouts", "--json").json() if item["node"] == honest)
    assert first["figures"]["samples"] == first["groups"] * 16

    found = muster("pool", "download", first["key"][:12], "--to", str(tmp_path), "--json").json()
    file = read_rollouts(Path(found["file"]))
    assert (file.header.node, file.header.checkpoint) == (first["node"], first["digest"])
    assert file.units == first["units"]
    assert stop_devnet(network.process) == 0  # the rest needs only the files, and a learning devnet uses two cores
    parts = {f"--{name.replace('_', '-')}": str(found[name]) for name in ("chain_id", "pool", "beacon", "salt")}
    said = verify(network, Path(found["file"]), version=first["version"], parts=parts, units=file.units)
    assert said.code == 0, said.out + said.err

    # The same file with higher rewards is rejected for its rewards.
    best = replace(file.samples[0], task_reward=1 - file.samples[0].task_reward, reward=1 - file.samples[0].reward)
    tampered = tmp_path / "tampered.parquet"
    write_rollouts(tampered, RolloutFile(file.header, (best, *file.samples[1:])))
    said = verify(network, tampered, version=first["version"], parts=parts, units=file.units)
    assert said.code == 1
    assert "reward" in said.out

    model = str(network.directory / "policies" / str(first["version"]))
    shown = run_muster("rollouts", "show", found["file"], "--model", model)
    assert shown.code == 0, shown.err
