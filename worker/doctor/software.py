"""Checks of the runtimes: Docker, its GPU support, and the sandbox."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from protocol.errors import MusterError
from protocol.identifiers import ZERO_ADDRESS
from worker.chain.ledger_chain import describe_error
from worker.doctor.finding import DoctorFinding, Level, failure, ok, warning
from worker.machine.gpus import GpuInventory
from worker.runtime.docker import DockerRuntime, engine_socket
from worker.runtime.process import WARNING, ProcessRuntime


async def check_docker(docker_host: str | None) -> tuple[DoctorFinding, bool | None]:
    """Checks the Docker engine; also returns whether it supports GPUs, None if it does not answer."""
    try:
        runtime = DockerRuntime(ZERO_ADDRESS, socket=engine_socket(docker_host))
    except MusterError as error:
        return failure("docker", error.detail, error.hint), None
    try:
        version = await runtime.check()
        return ok("docker", f"engine {version}"), await runtime.gpus_supported()
    except MusterError as error:
        installed = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
        advice = error.hint if installed else "install Docker (Debian: apt install docker.io) and start it"
        return warning("docker", error.detail[:300], advice), None
    finally:
        await runtime.close()


def check_toolkit(inventory: GpuInventory, gpus_supported: bool | None) -> DoctorFinding | None:
    """Checks the engine's GPU support; returns None without GPUs or without an engine."""
    if not inventory.gpus or gpus_supported is None:
        return None
    if gpus_supported:
        return ok("nvidia toolkit", "the engine can assign GPUs")
    return failure(
        "nvidia toolkit",
        "the machine has GPUs, but the engine can't assign them to containers",
        "install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart the engine",
    )


async def check_sandbox(docker: DoctorFinding) -> DoctorFinding:
    """Checks the sandbox, which is needed only if there is no Docker engine."""
    with TemporaryDirectory(prefix="muster-doctor-") as place:
        runtime = ProcessRuntime(ZERO_ADDRESS, directory=Path(place))
        try:
            version = await runtime.check()
        except MusterError as error:
            if docker.level is Level.OK:
                return ok("sandbox", f"not available ({error.detail}); not needed beside Docker")
            return failure(
                "sandbox", describe_error(error), "install Docker, or bubblewrap: one of them is needed to run tasks"
            )
    if docker.level is Level.OK:
        return ok("sandbox", version)
    return warning("sandbox", f"{version}; {WARNING}", "install Docker for tasks of people whom you do not know")
