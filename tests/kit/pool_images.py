"""Images of the services and the worker, built offline on a base made from this machine's Python and packages."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

import docker

from cli.devnet.image import installed_packages, make_image

ROOT = Path(__file__).parents[2]
LOCKS = tuple(f"deploy/locks/{name}.lock" for name in ("services", "rollouts", "torch-cpu", "reasoning-gym"))
SERVICES, COMPUTE, WORKER, REDIS = (f"muster/test-{name}:local" for name in ("services", "compute", "worker", "redis"))
_PROGRAMS = ("bwrap", "redis-server", "redis-cli", "chown", "chmod", "mv")
_REDIS = """FROM {base}
RUN python3 -c "import os; os.makedirs('/data'); os.chown('/data', 999, 999)"
"""


def base_image(client: docker.DockerClient) -> str:
    """Makes the base image unless there is one of the same locks, and returns its tag. It has 1.5 GB."""
    locked = b"".join((ROOT / name).read_bytes() for name in LOCKS)
    tag = (
        f"muster/test-base:{hashlib.sha256(locked).hexdigest()[:12]}-{sys.version_info.major}.{sys.version_info.minor}"
    )
    if not client.images.list(name=tag):
        for older in client.images.list(name="muster/test-base"):
            client.images.remove(str(older.id), force=True)
        make_image(client, tag, packages=installed_packages(LOCKS), programs=_PROGRAMS)
    return tag


def build_images(client: docker.DockerClient) -> str:
    """Builds the images from their Dockerfiles without a network, and returns the tag of the base."""
    base = base_image(client)
    for target, tag in (("services", SERVICES), ("compute", COMPUTE), ("worker", WORKER)):
        client.images.build(
            path=str(ROOT),
            dockerfile="deploy/images/services/Dockerfile",
            target=target,
            tag=tag,
            buildargs={"BASE": base, "INSTALL": "no"},
            network_mode="none",
            rm=True,
        )
    client.images.build(fileobj=io.BytesIO(_REDIS.format(base=base).encode()), tag=REDIS, network_mode="none", rm=True)
    return base
