"""The doctor with missing software, and with services that are down, wrong or slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from ledger.amounts import UNIT
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST
from protocol.identity.keys import Key
from protocol.runtime.clock import ManualClock, SystemClock
from protocol.runtime.findings import DoctorFinding, Level
from protocol.wire.nodes import Gpu, Hardware
from protocol.wire.runs import CheckpointRef, StepAnswer
from worker.chain.pool_record import PoolRecord
from worker.doctor import local_network, machine, network, software
from worker.doctor.ledger import check_record
from worker.doctor.run import check_run, paid_engines
from worker.machine.gpus import GpuInventory, read_gpus
from worker.membership.joining import OrchestratorLocation
from worker.settings import WorkerSettings
from worker.tasks.container_spec import InstalledGpu

H200 = InstalledGpu(gpu=Gpu(index=0, model="NVIDIA H200", memory_bytes=141 << 30), uuid="GPU-0")
RTX = InstalledGpu(gpu=Gpu(index=1, model="NVIDIA RTX 4090", memory_bytes=24 << 30), uuid="GPU-1")


class _Service(BaseHTTPRequestHandler):
    """An HTTP service with a clock of its own."""

    skew = timedelta()
    ready = 200
    page = 200
    downloads = 0
    building_s = 0.0
    """Time in which the service builds the page, at its first request."""

    def do_GET(self) -> None:
        status, body = (self.ready, b"{}") if self.path == "/readyz" else (self.page, b"x" * 100_000)
        if self.path != "/readyz":
            type(self).downloads += 1
            if type(self).downloads == 1:
                time.sleep(self.building_s)
        self.send_response_only(status)
        self.send_header("Date", format_datetime(datetime.now(UTC) + self.skew, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[tuple[str, type[_Service]]]:
    kind = type("Service", (_Service,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", kind
    server.shutdown()
    thread.join()
    server.server_close()


async def examined(url: str) -> dict[str, DoctorFinding]:
    found = await network.check_service("discovery", url, clock=SystemClock(), allow_plain_http=False)
    return {finding.check: finding for finding in found}


async def test_a_healthy_service_is_measured(service: tuple[str, type[_Service]]) -> None:
    url, kind = service
    kind.building_s = 1.1
    found = await examined(url)
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert "Mbit/s" in found["discovery bandwidth"].found
    assert kind.downloads <= 17
    kind.page = 429
    assert (await examined(url))["discovery bandwidth"].level is Level.OK
    kind.page = 404
    assert (await examined(url))["discovery bandwidth"].level is Level.WARNING


@pytest.mark.parametrize(
    ("skew", "level"), [(0, Level.OK), (20, Level.WARNING), (-20, Level.WARNING), (100, Level.FAILURE)]
)
async def test_a_wrong_clock_is_reported(service: tuple[str, type[_Service]], skew: int, level: Level) -> None:
    url, kind = service
    kind.skew = timedelta(seconds=skew)
    finding = (await examined(url))["clock"]
    assert finding.level is level
    assert bool(finding.advice) is (level is not Level.OK)


async def test_an_unready_an_unreachable_and_an_invalid_service_are_distinguished(
    service: tuple[str, type[_Service]],
) -> None:
    url, kind = service
    kind.ready = 503
    assert (await examined(url))["discovery"].level is Level.WARNING
    assert (await examined("http://127.0.0.1:9"))["discovery"].level is Level.FAILURE
    assert (await examined("http://example.org"))["discovery"].level is Level.FAILURE
    assert (await examined("nonsense"))["discovery"].level is Level.FAILURE


def test_own_addresses_are_addresses() -> None:
    for each in local_network.own_addresses():
        ip_address(each)


@pytest.mark.parametrize(
    ("inventory", "devices", "level", "words"),
    [
        (GpuInventory(), [], Level.OK, "none"),
        (GpuInventory(), ["nvidia0"], Level.WARNING, "no driver"),
        (GpuInventory(error="NVML: broken"), [], Level.WARNING, "broken"),
        (GpuInventory(gpus=(H200,), driver="570"), [], Level.OK, "1 of NVIDIA H200 with 141 GiB"),
        (GpuInventory(gpus=(H200, RTX), driver="570"), [], Level.OK, "RTX 4090 with 24 GiB"),
        (GpuInventory(gpus=(H200,), driver="570", classes=("sm_90",)), [], Level.OK, "driver 570, class sm_90"),
        (GpuInventory(gpus=(H200,), driver="570", error="GPU 1 does not answer"), [], Level.WARNING, "GPU 1"),
    ],
)
def test_gpus_are_counted_and_missing_drivers_reported(
    tmp_path: Path, inventory: GpuInventory, devices: list[str], level: Level, words: str
) -> None:
    for name in devices:
        (tmp_path / name).touch()
    finding = machine.check_gpus(inventory, devices=tmp_path)
    assert finding.level is level
    assert words in finding.found


@pytest.mark.parametrize(
    ("inventory", "supported", "level"),
    [
        (GpuInventory(), True, None),
        (GpuInventory(gpus=(H200,)), None, None),
        (GpuInventory(gpus=(H200,)), True, Level.OK),
        (GpuInventory(gpus=(H200,)), False, Level.FAILURE),
    ],
)
def test_the_nvidia_toolkit_matters_only_with_gpus_and_an_engine(
    inventory: GpuInventory, supported: bool | None, level: Level | None
) -> None:
    finding = software.check_toolkit(inventory, supported)
    assert (finding.level if finding else None) is level


def test_reading_gpus_without_a_driver_is_no_error() -> None:
    inventory = read_gpus()
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    assert inventory == GpuInventory()


async def test_an_unresponsive_engine_is_a_warning_and_a_remote_one_a_failure(tmp_path: Path) -> None:
    finding, gpus = await software.check_docker(f"unix://{tmp_path}/no.sock")
    assert (finding.level, gpus) == (Level.WARNING, None)
    finding, _ = await software.check_docker("tcp://10.0.0.1:2375")
    assert finding.level is Level.FAILURE


def test_memory_and_disk_have_minimums(tmp_path: Path) -> None:
    small = Hardware(cpu_model="x", cpu_cores=1, architecture="x", memory_bytes=1 << 30, disk_free_bytes=0)
    assert machine.check_memory(small).level is Level.FAILURE
    assert machine.check_processor(small).level is Level.WARNING
    assert machine.check_disk(tmp_path / "not" / "made" / "yet").found


def step_of(*arithmetic: str, announced: bool = True, unverifiable: tuple[str, ...] = ()) -> StepAnswer:
    """Returns an orchestrator's step answer with the given engines."""
    version = CheckpointRef(
        version=3,
        attempt=0,
        digest=ZERO_DIGEST,
        block=1,
        publisher=ZERO_ADDRESS,
        arithmetic=arithmetic,
        unverifiable=unverifiable,
    )
    return StepAnswer(
        run="main",
        run_id=ZERO_DIGEST,
        step=3,
        need=1,
        groups_per_slot=1,
        checkpoint=version if announced else None,
        retry_after_ms=0,
    )


@pytest.mark.parametrize(
    ("answer", "has_gpu", "level", "words"),
    [
        (step_of("torch/float32", "vllm/float32"), False, Level.OK, "paid for torch/float32, vllm/float32"),
        (step_of("vllm/bfloat16"), True, Level.OK, "paid for vllm/bfloat16"),
        (step_of("vllm/bfloat16"), False, Level.WARNING, "no GPU"),
        (step_of(), False, Level.OK, "its recipe lists the paid engines"),
        (step_of(announced=False), False, Level.OK, "no version"),
    ],
    ids=["taken", "with a gpu", "without a gpu", "none named", "no version"],
)
def test_the_doctor_reports_for_which_engines_the_run_pays(
    answer: StepAnswer, level: Level, words: str, *, has_gpu: bool
) -> None:
    found = paid_engines(answer, has_gpu=has_gpu)
    assert (found.check, found.level) == ("run", level)
    assert words in found.found


AVX2, AVX512 = "vllm-0.32.0/bfloat16/cpu-avx2", "vllm-0.32.0/bfloat16/cpu-avx512"


@pytest.mark.parametrize(
    ("answer", "cpu", "has_gpu", "level", "words"),
    [
        (step_of(AVX2, AVX512), "cpu-avx512", False, Level.OK, ""),
        (step_of(AVX2, AVX512, unverifiable=(AVX2,)), "cpu-avx512", False, Level.OK, ""),
        (
            step_of(AVX2, AVX512, unverifiable=(AVX512,)),
            "cpu-avx512",
            False,
            Level.WARNING,
            "class cpu-avx512 wait",
        ),
        (step_of(AVX2, AVX512, unverifiable=(AVX512,)), "cpu-avx512", True, Level.OK, ""),
        (step_of(AVX2, AVX512, unverifiable=(AVX512,)), None, False, Level.OK, ""),
        (step_of(AVX512, "torch/float32", unverifiable=(AVX512,)), "cpu-avx512", False, Level.OK, ""),
        (step_of(AVX2, AVX512, unverifiable=(AVX2, AVX512)), "cpu-amx", True, Level.WARNING, "tasks wait until"),
    ],
    ids=["all verified", "another class", "own class", "with a gpu", "no class", "a pair is left", "none left"],
)
def test_the_doctor_shows_which_paid_classes_no_validator_verifies(
    answer: StepAnswer, cpu: str | None, level: Level, words: str, *, has_gpu: bool
) -> None:
    found = paid_engines(answer, has_gpu=has_gpu, cpu=cpu)
    assert found.level is level
    assert words in found.advice
    assert answer.checkpoint is not None
    missing = answer.checkpoint.unverifiable
    assert ("no validator of the pool verifies " + ", ".join(missing) in found.found) is bool(missing)


@pytest.mark.parametrize(("name", "ending"), [("cpu-avx2", "(x86_64), class cpu-avx2"), (None, "(x86_64)")])
def test_the_doctor_shows_the_class_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, name: str | None, ending: str
) -> None:
    monkeypatch.setattr(machine, "cpu_class", lambda: name)
    hardware = Hardware(
        cpu_model="x", cpu_cores=4, architecture="x86_64", memory_bytes=8 << 30, disk_free_bytes=1 << 40
    )
    assert machine.check_processor(hardware).found == f"4 cores, x {ending}"


async def test_an_unreachable_orchestrator_is_a_warning() -> None:
    nobody = OrchestratorLocation(pool_id=7, url="http://127.0.0.1:9", orchestrator=ZERO_ADDRESS)
    within, key = timedelta(milliseconds=200), Key.generate()
    settings = WorkerSettings(pool_id=7, discovery=("http://127.0.0.1:9",), deployment=Path("d.json"))
    (found,) = await check_run(nobody, settings, key=key, clock=SystemClock(), has_gpu=False, within=within)
    assert (found.check, found.level) == ("run", Level.WARNING)


@pytest.mark.parametrize(
    ("record", "level", "words"),
    [
        (PoolRecord(), Level.OK, "no work has finished lately"),
        (
            PoolRecord(accepted=95, expired=5),
            Level.OK,
            "95% were accepted, 0% refused by validators, 5% expired without",
        ),
        (PoolRecord(accepted=94, expired=6), Level.WARNING, "6% expired without a verdict"),
        (PoolRecord(accepted=49, refused=51), Level.WARNING, "51% refused by validators"),
        (PoolRecord(expired=9), Level.OK, "100% expired without a verdict"),
        (PoolRecord(leaving=6 * UNIT, free=10 * UNIT), Level.WARNING, "withdraws 6 of 10 MUST free escrow"),
        (PoolRecord(leaving=5 * UNIT, free=10 * UNIT), Level.OK, "withdraws 5 of 10 MUST free escrow"),
    ],
)
def test_a_pool_that_does_not_pay_causes_a_warning(record: PoolRecord, level: Level, words: str) -> None:
    finding = check_record(record)
    assert finding.level is level
    assert words in finding.found
    assert bool(finding.advice) is (level is Level.WARNING)


def test_on_a_fresh_machine_every_failed_check_gives_advice(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    environment |= {"DOCKER_HOST": f"unix://{tmp_path}/no.sock", "HOME": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-m", "cli", "worker", "doctor", "--json", "--state", str(tmp_path / "state")],
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 1, told.stderr
    findings: list[dict[str, Any]] = json.loads(told.stdout)
    checks = {finding["check"]: finding for finding in findings}
    assert {"gpu", "cpu", "memory", "disk", "docker", "sandbox", "settings"} <= checks.keys()
    assert checks["docker"]["level"] != "ok"
    assert all(finding["advice"] for finding in findings if finding["level"] != "ok")
    assert "pool_id" in checks["settings"]["found"]


def test_a_clock_that_agrees_to_the_second_is_accepted(clock: ManualClock) -> None:
    finding = network._clock(format_datetime(clock.now(), usegmt=True), clock)
    assert finding.level is Level.OK
