"""Removal of images that the worker pulled, on a real Docker engine, and of policy versions."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from docker.errors import APIError

from protocol.identifiers import Address
from protocol.runtime.clock import ManualClock
from protocol.runtime.randomness import token_hex
from tests.worker.conftest import Engine
from worker.runtime.docker import DockerRuntime
from worker.runtime.images import MOST_IMAGES, PulledImages
from worker.runtime.interface import RuntimeDown
from worker.state import StateDirectory
from worker.tasks.housekeeping import Housekeeping
from worker.tasks.reconciler import Reconciler

DAYS = timedelta(days=14)
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass
class Registry:
    """A registry on loopback, from which engines pull without TLS."""

    port: int = 0
    blobs: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def push(self, tag: str, content: str) -> str:
        """Makes an image with one file; returns its reference."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo("file")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
        layer = self._add(packed.getvalue())
        machine = {"architecture": "amd64" if os.uname().machine == "x86_64" else "arm64", "os": "linux"}
        settings = {
            **machine,
            "config": {"Cmd": ["/file"]},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        }
        config = self._add(json.dumps(settings).encode())
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json", **config},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", **layer}],
        }
        self.tags[tag] = str(self._add(json.dumps(manifest).encode())["digest"])
        return f"127.0.0.1:{self.port}/muster-test:{tag}"

    def _add(self, blob: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        self.blobs[digest] = blob
        return {"digest": digest, "size": len(blob)}


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            blob = made.blobs.get(made.tags.get(name, name), b"{}" if self.path == "/v2/" else b"")
            self.send_response(200 if blob else 404)
            self.send_header("Content-Type", MANIFEST if "/manifests/" in self.path else "application/octet-stream")
            self.send_header("Content-Length", str(len(blob)))
            self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(blob).hexdigest()}")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(blob)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_request(self, *_: object) -> None:
            """Does nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield made
        server.shutdown()


async def test_only_unused_images_that_the_worker_pulled_are_removed(
    engine: Engine, registry: Registry, node: Address, state: StateDirectory, clock: ManualClock
) -> None:
    docker, mark = engine.client, token_hex(4)
    names = ("mine", "latest", "old", "tagged", "held", "named")
    references = {name: registry.push(name, f"{name} {mark}") for name in names}
    mine, latest, old, tagged, held, named = references.values()
    keepsake, container = f"keepsake-{mark}:mine", f"holds-{mark}"
    docker.images.pull(mine)
    docker.images.pull(latest)
    contributors = str(docker.images.get(latest).id)
    registry.push("latest", f"moved {mark}")

    def runtime() -> DockerRuntime:
        return DockerRuntime(node, socket=engine.socket, images=PulledImages(state.images, clock=clock))

    def here() -> set[str]:
        found = {tag for image in docker.images.list() for tag in image.tags}
        return {name for name, reference in references.items() if reference in found}

    first = runtime()
    try:
        for reference in references.values():
            await first.pull(reference, credentials=None, progress=lambda _: None)
        docker.images.get(tagged).tag(keepsake)
        docker.containers.create(held, name=container)
        await first.close()
        second = runtime()  # the record outlives a restart
        assert await second.remove_unused_images(named=(), unused_for=DAYS) == ()
        await clock.turn(DAYS + timedelta(seconds=1))
        await second.pull(named, credentials=None, progress=lambda _: None)  # a use
        assert await second.remove_unused_images(named=(), unused_for=DAYS) == (old,)
        assert here() == {"mine", "latest", "tagged", "held", "named"}
        assert docker.images.get(contributors).id == contributors
        await clock.turn(DAYS + timedelta(seconds=1))
        docker.containers.get(container).remove()
        assert await second.remove_unused_images(named={named}, unused_for=DAYS) == (held,), "its container was a use"
        await clock.turn(DAYS + timedelta(seconds=1))
        assert await second.remove_unused_images(named=(), unused_for=DAYS) == (named,)
        assert here() == {"mine", "latest", "tagged"}
        assert await second.remove_unused_images(named=(), unused_for=DAYS) == ()
        await second.close()
    finally:
        with suppress(APIError):
            docker.containers.get(container).remove()
        for leftover in (*references.values(), keepsake, contributors):
            with suppress(APIError):
                docker.images.remove(leftover)


async def test_an_image_that_replaces_a_recorded_one_is_recorded_and_both_are_removed(
    engine: Engine, registry: Registry, node: Address, state: StateDirectory, clock: ManualClock
) -> None:
    mark = token_hex(4)
    reference = registry.push("latest", f"first {mark}")
    runtime = DockerRuntime(node, socket=engine.socket, images=PulledImages(state.images, clock=clock))
    await runtime.pull(reference, credentials=None, progress=lambda _: None)
    registry.push("latest", f"second {mark}")
    await runtime.pull(reference, credentials=None, progress=lambda _: None)
    await clock.turn(DAYS + timedelta(seconds=1))
    assert await runtime.remove_unused_images(named=(), unused_for=DAYS) == (reference, reference)
    assert json.loads(state.images.read_bytes()) == {"images": {}}
    await runtime.close()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"images": {"x": {"reference": 1}}}', b'{"images": 3}', None])
def test_a_damaged_or_missing_record_counts_as_empty_and_its_size_is_bounded(
    state: StateDirectory, clock: ManualClock, content: bytes | None
) -> None:
    if content is not None:
        state.images.write_bytes(content)
    images = PulledImages(state.images, clock=clock)
    assert not images.is_recorded("x")
    if content is None:
        for number in range(MOST_IMAGES + 1):
            images._images[f"{number}"] = images._images.get("0") or _recorded(images)
        images.note_pull("newest", reference="r", tags=())
        assert len(json.loads(state.images.read_bytes())["images"]) == MOST_IMAGES
        assert PulledImages(state.images, clock=clock).is_recorded("newest")
        state.images.unlink()
        state.images.mkdir()  # a file that can't be written must not end a task
        images.note_pull("other", reference="r", tags=())


def _recorded(images: PulledImages) -> Any:
    images.note_pull("0", reference="q", tags=())
    return images._images["0"]


@dataclass
class Situation:
    """What the loop sees of the reconciler and the runtime; records removals of images."""

    named: frozenset[str] | None = frozenset()
    running: tuple[str, ...] = ()
    down: bool = False
    asked: list[tuple[frozenset[str], timedelta]] = field(default_factory=list)

    def named_images(self) -> frozenset[str] | None:
        return self.named

    async def containers(self) -> tuple[str, ...]:
        return self.running

    async def remove_unused_images(self, *, named: frozenset[str], unused_for: timedelta) -> tuple[str, ...]:
        if self.down:
            raise RuntimeDown("the engine is down")
        self.asked.append((named, unused_for))
        return ()


@pytest.mark.parametrize(
    ("situation", "unused_for", "asks", "removes"),
    [
        (Situation(), DAYS, True, True),
        (Situation(named=None), DAYS, False, False),
        (Situation(named=frozenset({"i"})), DAYS, True, False),
        (Situation(running=("c",)), DAYS, True, False),
        (Situation(down=True), DAYS, False, False),
        (Situation(), timedelta(), False, False),
    ],
    ids=["idle", "before the first answer", "with a task", "with a container", "engine down", "never"],
)
async def test_unused_versions_are_removed_only_while_the_worker_is_idle(
    state: StateDirectory, clock: ManualClock, tmp_path: Path, situation: Situation, unused_for: timedelta, asks: bool,
    removes: bool,
) -> None:  # fmt: skip
    versions = state.shared / "checkpoints"
    elsewhere = tmp_path / "elsewhere"
    for place in (versions / "old", versions / ".incoming-old", versions / "young", elsewhere):
        place.mkdir(parents=True)
        (place / "weights").write_bytes(b"w")
    (versions / "link").symlink_to(elsewhere)
    (versions / ".old.lock").touch()
    for name, age in (("old", 15), (".incoming-old", 15), ("young", 13)):
        at = (clock.now() - timedelta(days=age)).timestamp()
        os.utime(versions / name, (at, at))
    os.utime(elsewhere, (0, 0))
    runtime, reconciler = cast("DockerRuntime", situation), cast("Reconciler", situation)
    await Housekeeping(runtime, reconciler, state, unused_for=unused_for, clock=clock).round()
    assert [named for named, _ in situation.asked] == ([situation.named] if asks else [])
    left = {".old.lock", "link", "young"} | (set() if removes else {"old", ".incoming-old"})
    assert {path.name for path in versions.iterdir()} == left
    assert (elsewhere / "weights").exists()
