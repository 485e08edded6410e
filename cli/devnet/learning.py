"""The parts of a devnet that learn and check: trainer, validators, and the worker that cheats."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import RUN_TERMS, VALIDATORS
from cli.devnet.options import RunOptions
from cli.devnet.services import LANES, POOL, RUN, WORKER, ServicePlaces, alive, environment
from cli.devnet.settings_file import write_settings
from cli.devnet.supervisor import ProcessSpec
from trainer.presets import devnet_base


def trainer_spec(directory: DevnetDirectory, places: ServicePlaces, run: RunOptions) -> ProcessSpec:
    """`muster trainer run`; it ends when its steps are done."""
    path = directory.path / "trainer.toml"
    write_settings(path, {"trainer": _trainer_table(directory, places, run)})
    command = [sys.executable, "-m", "cli", "trainer", "run", "--config", str(path)]
    return ProcessSpec(
        name="trainer",
        command=command,
        environment={**environment(), "OMP_NUM_THREADS": "1"},
        grace=timedelta(seconds=15),
        ends=True,
        kind="learner",
    )


def _trainer_table(directory: DevnetDirectory, places: ServicePlaces, run: RunOptions) -> Mapping[str, object]:
    return {
        "run": RUN,
        "pool_id": POOL,
        "orchestrator": places.orchestrator,
        "chain_url": places.rpc,
        "deployment": directory.deployment,
        "keystore": directory.keys / "publisher.json",
        "password_file": directory.password,
        "start": devnet_base(run.terms.base),
        "policies": directory.policies,
        "state": directory.trainer,
        "relays": list(places.relays),
        "dtype": "float32",
        "device": "cpu",
        "steps": run.steps,
        "seed": run.seed,
        "groups_per_step": run.groups,
        "asynchrony": run.asynchrony,
        "linger_s": 0.0,
        "poll_s": 0.2,
        "patience_s": 60.0,
        "evaluate_every": run.evaluate_every,
        "evaluation_prompts": run.evaluation_prompts,
        "evaluation_samples": run.evaluation_samples,
        "learning": run.terms.learning,
    }


def validator_spec(directory: DevnetDirectory, places: ServicePlaces, number: int) -> ProcessSpec:
    """`muster validator run`; numbered from 1."""
    name, port = VALIDATORS[number - 1], places.validator_ports[number - 1]
    path = directory.path / f"{name}.toml"
    home = directory.path / "validators" / str(number)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    table = {
        "port": port,
        "pool_id": POOL,
        "orchestrator": places.orchestrator,
        "redis_url_file": places.redis_url_file,
        "chain_url": places.rpc,
        "deployment": directory.deployment,
        "keystore": directory.keys / f"{name}.json",
        "password_file": directory.password,
        "directory": home,
        "workers": 1,
        "lease_s": 5.0,
        "poll_s": 0.04,
        "takeover_s": 5.0,
        "verdict_transactions": LANES,
        "finalise_every_s": 3.0,
        "trial": 64,
        "first_pause_s": 0.2,
        "longest_pause_s": 2.0,
        "reserve_bytes": 0,
        "epoch_s": RUN_TERMS.judge_period.total_seconds(),  # a validator refuses shorter ones
        "device": "cpu",
    }
    write_settings(path, {"validator": table})
    command = [sys.executable, "-m", "cli", "validator", "run", "--config", str(path)]
    return ProcessSpec(
        name=name,
        command=command,
        environment={**environment(), "OMP_NUM_THREADS": "1"},
        gate=alive(port),
        ready_within=timedelta(seconds=60),
        grace=timedelta(seconds=10),
        kind="learner",
    )


def cheater_spec(name: str, cheat: str, settings: Path) -> ProcessSpec:
    """`muster worker run` on a machine whose owner changed its task."""
    command = [sys.executable, "-m", "cli.devnet.attacks", "run", "--cheat", cheat, "--config", str(settings)]
    return ProcessSpec(name=name, command=command, environment=environment(), grace=timedelta(seconds=15), kind=WORKER)
