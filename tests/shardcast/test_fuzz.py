"""Bytes that are corrupted in transit never cause a wrong file, or a download that hangs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import MusterError
from shardcast.client import Client
from shardcast.download.context import TransferLimits
from shardcast.manifest.records import BLOCK
from shardcast.origin import Origin
from tests.kit.manifests import PUBLISHER
from tests.kit.shardcast import QUICK, RUN_NAME, content, read_folder, write_folder
from tests.shardcast.mangling import Corruption, ManglingProxy

FILES = content(9, size=BLOCK + 5000)
SHORT = replace(
    QUICK,
    answer=timedelta(milliseconds=300),
    silence=timedelta(milliseconds=300),
    stall=timedelta(milliseconds=250),
    appear=timedelta(milliseconds=300),
    progress=timedelta(seconds=1),
)

# The first few hundred bytes of an answer are headers, listings and manifests; most of the others are blocks.
OFFSETS = st.integers(0, 600) | st.integers(0, 270_000) | st.integers(0, BLOCK + 20_000)
CORRUPTIONS = st.builds(
    Corruption,
    kind=st.sampled_from(["none", "flip", "flip", "cut", "insert", "repeat", "stall"]),
    at=OFFSETS,
    byte=st.integers(1, 255),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns a folder with content to publish."""
    folder = tmp_path_factory.mktemp("fuzz")
    write_folder(folder / "source", FILES)
    yield folder
    shutil.rmtree(folder)


@settings(max_examples=10)
@given(corruptions=st.lists(CORRUPTIONS, max_size=12), with_good=st.booleans())
def test_corrupted_bytes_never_produce_a_wrong_file(
    folder: Path, corruptions: list[Corruption], with_good: bool
) -> None:
    async def attempt() -> None:
        shutil.rmtree(folder / "origin", ignore_errors=True)
        shutil.rmtree(folder / "to", ignore_errors=True)
        async with Origin(folder / "origin", run=RUN_NAME, key=PUBLISHER) as origin:
            await origin.publish_folder(1, folder / "source")
            async with ManglingProxy("127.0.0.1", origin.server.port, corruptions) as proxy:
                urls = [proxy.url, origin.url] if with_good else [proxy.url]
                limits = TransferLimits(connections=2, span_blocks=2)
                async with Client(
                    urls, run=RUN_NAME, signer=PUBLISHER.address, timeouts=SHORT, requests=limits
                ) as client:
                    await fetch(client, must=with_good)

    async def fetch(client: Client, *, must: bool) -> None:
        try:
            fetched = await client.fetch(1, folder / "to")
        except MusterError:
            assert not must
            assert not (folder / "to" / "1").exists()
        else:
            assert read_folder(fetched.path) == FILES

    async def bounded() -> None:
        async with asyncio.timeout(120):
            await attempt()

    asyncio.run(bounded())
