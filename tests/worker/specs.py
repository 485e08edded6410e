"""Container specs for tests: defaults with optional overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from protocol.identifiers import Address
from protocol.wire.tasks import MEBIBYTE, NetworkMode, Resources
from worker.runtime.interface import Container, ContainerSpec, ContainerStatus, OutputLine, Runtime, name_prefix


def spec_for(node: Address, image: str, command: Sequence[str], **changes: Any) -> ContainerSpec:
    """Returns a spec for this node."""
    base = ContainerSpec(
        name=f"{name_prefix(node)}test-1",
        assignment_id="a" * 32,
        fingerprint="f",
        restart_nonce=0,
        image=image,
        entrypoint=None,
        command=tuple(command),
        environment={},
        mounts=(),
        resources=Resources(memory_bytes=128 * MEBIBYTE, pids=64, cpus=0.5),
        gpu_uuids=(),
        gpu_indices=(),
        network=NetworkMode.NONE,
        read_only_root=True,
        stop_grace=timedelta(seconds=1),
    )
    return replace(base, **changes)


async def run_to_end(runtime: Runtime, spec: ContainerSpec) -> tuple[Container, list[OutputLine]]:
    """Starts a container, reads all its output, and returns how it ended."""
    await runtime.start(spec)
    lines = [line async for line in runtime.output(spec.name, after_ns=0)]
    for _ in range(200):
        found = [container for container in await runtime.containers() if container.name == spec.name]
        if found and found[0].status is ContainerStatus.EXITED:
            return found[0], lines
    raise AssertionError(f"{spec.name} did not end")


def text_of(lines: Sequence[OutputLine]) -> str:
    """Returns the output as text."""
    return "\n".join(line.text for line in lines)
