"""An origin of a run, clients of it, and content to publish."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import Counter

from shardcast.client import Client
from shardcast.download.peer_client import PeerTimeouts
from shardcast.origin import Origin
from shardcast.relay import Relay
from tests.kit.manifests import PUBLISHER

RUN_NAME = "test"

QUICK = PeerTimeouts(
    connect=timedelta(seconds=2),
    answer=timedelta(seconds=2),
    appear=timedelta(milliseconds=300),
    silence=timedelta(seconds=8),
    stall=timedelta(seconds=1),
    progress=timedelta(seconds=20),
    hedge=timedelta(milliseconds=300),
)

Content = dict[str, bytes]


def relay_of(store: Path, *upstreams: str, **other: Any) -> Relay:
    """Returns a relay of the test run."""
    settings: dict[str, Any] = {"run": RUN_NAME, "signer": PUBLISHER.address, "timeouts": QUICK}
    return Relay(store, upstreams=upstreams, **(settings | other))


def content(seed: int, *, size: int = 5 * (1 << 20) + 77) -> Content:
    """A version: a large file, a small one in a folder, and an empty one."""
    data = random.Random(seed).randbytes(size)
    return {"model.safetensors": data, "tokenizer/config.json": b'{"seed": %d}' % seed, "empty": b""}


def write_folder(folder: Path, files: Content) -> Path:
    """The content as files."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def read_folder(folder: Path) -> Content:
    """Returns the files of a folder, without hidden ones."""
    found = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = Path(root) / name
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


async def eventually(true: Callable[[], bool], *, within: float = 90.0) -> None:
    """Returns as soon as something is true; fails if it does not become so."""
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110 - what is waited for is inside of parts that tell nobody
            await asyncio.sleep(0.005)


def total(counter: Counter) -> float:
    """A counter's value over all its labels."""
    return sum(
        sample.value for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total")
    )


async def status_of(url: str, **headers: str) -> int:
    """The status of an answer."""
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, allow_redirects=False) as answer:
        await answer.read()
        return answer.status


def complete(relay: Relay, version: int) -> bool:
    """Whether a relay has all of a version."""
    held = relay.versions.get(version)
    return held is not None and held.manifest.sealed and not held.missing()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Whatever is entered here is left at the end of the test."""
    async with AsyncExitStack() as entered:
        yield entered


@pytest.fixture
async def origin(tmp_path: Path, stack: AsyncExitStack) -> Origin:
    """An origin of the test run."""
    return await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER))


@pytest.fixture
def client_of() -> Callable[..., Client]:
    """Makes clients of the test run with short time-outs."""

    def make(*urls: str, **other: Any) -> Client:
        settings: dict[str, Any] = {"run": RUN_NAME, "signer": PUBLISHER.address, "timeouts": QUICK}
        return Client(urls, **(settings | other))

    return make
