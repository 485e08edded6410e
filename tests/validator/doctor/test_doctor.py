"""The validator's doctor against real services, and with services and settings that are wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.runtime.clock import SystemClock
from protocol.runtime.findings import DoctorFinding, Level, ok
from rollouts.checks import open_version
from rollouts.errors import EngineFailed
from rollouts.precision import Arithmetic
from rollouts.recipe import read_recipe, write_recipe
from tests.kit.command_line import run_muster
from tests.kit.terminal import serving
from tests.kit.trained_pool import base_folder
from tests.kit.validators import PoolWithValidators
from tests.kit.world import POOL
from validator.doctor import diagnosis, machine, version
from validator.examination.child import ExaminerProcess
from validator.examination.interface import NotJudged
from validator.settings import ValidatorSettings


def settings_of(folder: Path, **changes: Any) -> ValidatorSettings:
    told: dict[str, Any] = {
        "pool_id": POOL,
        "orchestrator": "http://127.0.0.1:1",
        "deployment": folder / "deployment.json",
        "directory": folder / "state",
        "reserve_bytes": 0,
        "workers": 1,
        "device": "cpu",
    }
    return ValidatorSettings(**told | changes)


def levels(findings: list[DoctorFinding]) -> dict[str, Level]:
    assert all(each.advice for each in findings if each.level is not Level.OK), "each problem says what to do"
    return {each.check: each.level for each in findings}


async def test_a_validator_of_the_pool_is_healthy_and_another_key_is_not(
    pool: PoolWithValidators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.world.deployment.save(tmp_path / "deployment.json")
    clock = pool.run.pool.clock

    async def examiner_works(_: object) -> DoctorFinding:
        return ok("examiner", "")

    monkeypatch.setattr(machine, "check_examiner", examiner_works)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        settings = settings_of(
            tmp_path,
            orchestrator=f"http://127.0.0.1:{listener.getsockname()[1]}",
            redis_url=pool.url,
            chain_url=pool.world.url,
            epoch_s=1e6,
        )
        async with serving(pool.run.pool.app, listener):
            monkeypatch.setenv("MUSTER_VALIDATOR_KEY", pool.world.keys["validator"].reveal().hex())
            found = levels(await diagnosis.diagnose(settings, clock=clock))
            assert {name for name, level in found.items() if level is Level.FAILURE} == set()
            assert {
                "settings",
                "memory",
                "disk",
                "redis",
                "key",
                "chain",
                "gas",
                "role",
                "orchestrator",
            } <= found.keys()
            assert found["version"] is Level.WARNING, "it was not downloaded"
            fetched = levels(await diagnosis.diagnose(settings, clock=clock, fetch=True))
            assert fetched["version"] is Level.FAILURE, "the run has no relays"

            monkeypatch.setenv("MUSTER_VALIDATOR_KEY", pool.world.keys["node"].reveal().hex())
            short = settings.model_copy(update={"epoch_s": 1.0})
            found = levels(await diagnosis.diagnose(short, clock=clock))
            assert (found["role"], found["epochs"]) == (Level.FAILURE, Level.FAILURE)


async def test_services_that_are_down_are_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_sandbox(*_: object, **__: object) -> NotJudged:
        return NotJudged(code="no-sandbox", why="no sandbox starts here", retryable=True)

    monkeypatch.setattr(ExaminerProcess, "try_out", no_sandbox)
    monkeypatch.setenv("MUSTER_VALIDATOR_KEY", "0x" + "22" * 32)
    settings = settings_of(tmp_path, redis_url="redis://127.0.0.1:1/0", chain_url="http://127.0.0.1:1")
    found = levels(await diagnosis.diagnose(settings, clock=SystemClock()))
    assert [found[name] for name in ("redis", "chain", "orchestrator", "examiner")] == [Level.FAILURE] * 4
    monkeypatch.delenv("MUSTER_VALIDATOR_KEY")
    assert levels(await diagnosis.diagnose(settings, clock=SystemClock()))["key"] is Level.FAILURE
    without = levels(await diagnosis.diagnose(None, Unavailable("no file", hint=""), clock=SystemClock()))
    assert (without["settings"], without["memory"]) == (Level.FAILURE, Level.OK)


@pytest.mark.parametrize(
    ("changes", "recipe", "check", "level"),
    [
        ({}, {}, "calibration", Level.OK),
        ({}, {}, "environment", Level.OK),
        ({}, {}, "weights", Level.OK),
        ({}, {"arithmetic": ("torch/bfloat16",)}, "calibration", Level.FAILURE),
        ({"calibration": Path("absent.json")}, {}, "calibration", Level.FAILURE),
        ({"policy_memory_bytes": 1000}, {}, "weights", Level.FAILURE),
        ({"policy_memory_bytes": 100_000}, {}, "weights", Level.WARNING),
    ],
)
def test_an_opened_version_is_compared_with_settings_and_machine(
    tmp_path: Path, changes: dict[str, Any], recipe: dict[str, Any], check: str, level: Level
) -> None:
    folder = base_folder(tmp_path / "version")
    write_recipe(folder, read_recipe(folder).model_copy(update=recipe))
    found = version.check_opened(settings_of(tmp_path, **changes), open_version(folder), named="version 1")
    assert levels(found)[check] is level


@pytest.mark.parametrize(
    ("python", "paid", "classes", "expected"),
    [
        (None, ("torch/float32",), [], None),
        (None, ("vllm-0.32.0/bfloat16/cpu-avx2",), EngineFailed("no vLLM"), Level.WARNING),
        (Path("python"), (), EngineFailed("no vLLM"), Level.FAILURE),
        (Path("python"), ("vllm-0.32.0/bfloat16/cpu-avx2",), ["vllm-0.32.0/bfloat16/cpu-avx2"], Level.OK),
        (Path("python"), ("vllm-0.32.0/bfloat16/sm_90",), ["vllm-0.32.0/bfloat16/cpu-avx2"], Level.WARNING),
    ],
)
async def test_numerics_classes_that_the_run_pays_for_are_compared_with_vllms(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    python: Path | None,
    paid: tuple[str, ...],
    classes: Any,
    expected: Any,
) -> None:
    def classes_here(_: object) -> list[Arithmetic]:
        if isinstance(classes, Exception):
            raise classes
        return [Arithmetic.parse(name) for name in classes]

    monkeypatch.setattr(version, "classes_at", classes_here)
    found = levels(await version.check_numerics(settings_of(tmp_path, vllm_python=python), paid, check=False))
    assert found.get("numerics") is expected


def test_the_machine_is_compared_with_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    for workers, threads, level in ((4, 2, Level.OK), (8, 2, Level.WARNING), (1, 1, Level.WARNING)):
        assert machine.check_cores(settings_of(tmp_path, workers=workers, threads=threads)).level is level
    for memory, free, level in ((1, 1, Level.FAILURE), (8, 1, Level.WARNING), (8, 4, Level.OK)):
        monkeypatch.setattr(machine, "machine_memory", lambda memory=memory: memory * machine.GIB)
        monkeypatch.setattr(machine, "free_memory", lambda free=free: free * machine.GIB)
        assert machine.check_memory().level is level
    for reserve, most, level in ((0, 1, Level.OK), (1 << 60, 1, Level.FAILURE), (0, 1 << 60, Level.WARNING)):
        assert machine.check_disk(settings_of(tmp_path, reserve_bytes=reserve, file_most_bytes=most)).level is level
    few = [
        diagnosis._check_gas(price * diagnosis.VERDICT_GAS * count, price).level
        for price, count in ((3, 0), (3, 9), (3, 10**4))
    ]
    assert few == [Level.FAILURE, Level.WARNING, Level.OK]


def test_a_measurement_generates_files_by_the_recipe_and_examines_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = base_folder(tmp_path / "version")
    command = ("validator", "doctor", "--model", str(folder), "--device", "cpu", "--groups", "2", "--files", "2")
    assert run_muster(monkeypatch, *command, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["workers"], found["arithmetic"]) == (8, 1, "torch/float32")
    assert [one["share"] for one in found["examined"]] == [1.0, 0.1]
    every = found["examined"][0]
    assert every["tokens_per_s"] == pytest.approx(every["files_per_minute"] / 60 * found["tokens"])
    assert every["nodes"] == pytest.approx(every["tokens_per_s"] / found["generated_per_s"])
    write_recipe(folder, read_recipe(folder).model_copy(update={"arithmetic": ("vllm/bfloat16",)}))
    assert run_muster(monkeypatch, *command) == 1
    assert "pays for vllm/bfloat16" in capsys.readouterr().err
