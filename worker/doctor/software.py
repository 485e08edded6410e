"""Checks the runtimes for tasks: Docker, its GPU support, and the sandbox."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from protocol.errors import MusterError
from protocol.identifiers import ZERO_ADDRESS
from protocol.runtime.findings import DoctorFinding, Level, failure, ok, warning
from worker.chain.ledger_chain import describe_error
from worker.machine.gpus import GpuInventory
from worker.runtime.docker import DockerRuntime, engine_socket
from worker.runtime.process import WARNING, ProcessRuntime


async def check_docker(docker_host: str | None) -> tuple[DoctorFinding, bool | None]:
    """Checks the Docker engine; also returns whether it supports GPUs.

    The second value is None if the engine does not answer.
    """
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
    """Checks the Docker engine's GPU support.

    Returns None if there are no GPUs or no engine.
    """
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
    """Checks the process sandbox, which is needed only without a Docker engine."""
    with TemporaryDirectory(prefix="muster-doctor-") as place:
        runtime = ProcessRuntime(ZERO_ADDRESS, directory=Path(place))
        try:
            version = await runtime.check()
        except MusterError as error:
            if docker.level is Level.OK:
                return ok("sandbox", f"not available ({error.detail}), but not needed because there is Docker")
            return failure(
                "sandbox", describe_error(error), "install Docker or bubblewrap: one of them is needed to run tasks"
            )
    if docker.level is Level.OK:
        return ok("sandbox", version)
    return warning("sandbox", f"{version}; {WARNING}", "install Docker if you do not know the pool's owner")
