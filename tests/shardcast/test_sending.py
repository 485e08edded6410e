"""The server sends blocks to a reader in batches whose size adapts to the reader's speed."""

from __future__ import annotations

import asyncio
import http.client
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
import uvloop

from shardcast.manifest.records import BLOCK
from shardcast.origin import Origin
from shardcast.serve.sender import LEAST_BLOCKS, MOST_BLOCKS, QUICK_S, BatchSize, RangeSender
from tests.kit.manifests import PUBLISHER
from tests.kit.shardcast import RUN_NAME, write_folder
from tests.shardcast.test_server import certificate

QUICKLY, SLOWLY = QUICK_S / 2, QUICK_S * 2


@pytest.mark.parametrize(
    ("took", "blocks"),
    [
        ([], LEAST_BLOCKS),
        ([QUICKLY], 2 * LEAST_BLOCKS),
        ([QUICKLY] * 9, MOST_BLOCKS),
        ([SLOWLY] * 9, LEAST_BLOCKS),
        ([QUICKLY] * 9 + [SLOWLY], MOST_BLOCKS // 2),
        ([QUICKLY] * 9 + [SLOWLY] * 9, LEAST_BLOCKS),
        ([SLOWLY] * 9 + [QUICKLY], 2 * LEAST_BLOCKS),
    ],
)
def test_a_fast_reader_gets_larger_batches(took: list[float], blocks: int) -> None:
    batch = BatchSize()
    for seconds in took:
        batch.record(seconds)
    assert batch.blocks == blocks


async def test_a_connection_keeps_its_batch_size_for_its_next_request(
    stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardcast.serve.sender.QUICK_S", 60.0)  # so that even a slow machine counts as a fast reader
    origin = await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER))
    data = Random(1).randbytes(MOST_BLOCKS * BLOCK)
    await origin.publish_folder(1, write_folder(tmp_path / "source", {"model.safetensors": data}))
    given: list[int] = []
    monkeypatch.setattr(origin.server.sender, "sent", lambda size: given.append(size // BLOCK))

    bodies = await asyncio.to_thread(_ask_twice, origin.server.port)

    assert bodies == [data, data]
    assert given == [4, 8, 4, 16]


class CompleteVersion:
    """Stands for a local version that has all blocks of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def path(self, _file: int) -> Path:
        return self._path

    def has(self, _file: int, _block: int) -> bool:
        return True

    def count_present(self, _file: int, _block: int, most: int) -> int:
        return most


@pytest.mark.parametrize("stalls", [False, True])
async def test_a_larger_batch_gets_a_proportionally_longer_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stalls: bool
) -> None:
    timeout = timedelta(seconds=1 if stalls else 3)
    sizes: list[int] = []

    async def hand_over(*_: object) -> None:
        if len(sizes) == 2:
            await asyncio.sleep(60 if stalls else 1.5 * timeout.total_seconds())

    monkeypatch.setattr("shardcast.serve.sender._send_batch", hand_over)
    monkeypatch.setattr("shardcast.serve.sender.QUICK_S", 60.0)
    (tmp_path / "file").touch()
    sender = RangeSender(timeout=timeout, sent=lambda size: sizes.append(int(size) // BLOCK))
    sending = sender.send(
        cast("Any", SimpleNamespace(transport=None)),
        cast("Any", None),
        cast("Any", CompleteVersion(tmp_path / "file")),
        file=0,
        span=(0, 28 * BLOCK - 1),
    )
    if stalls:
        with pytest.raises(TimeoutError):
            await sending
    else:
        await sending
    assert sizes == [4, 8] + [16] * (not stalls)


def test_a_file_is_sent_over_tls_with_uvloop(tmp_path: Path) -> None:
    serving, trusting = certificate(tmp_path)
    data = Random(2).randbytes(2 * BLOCK + 7)

    async def fetched() -> bytes:
        async with Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER, tls=serving) as origin:
            await origin.publish_folder(1, write_folder(tmp_path / "source", {"model.safetensors": data}))
            span = {"Range": f"bytes=0-{len(data) - 1}"}
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
                url = f"{origin.server.url}/v1/versions/1/1/files/0"
                async with session.get(url, headers=span, ssl=trusting) as answer:
                    return await answer.read()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(fetched()) == data


def _ask_twice(port: int) -> list[bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    bodies = []
    for _ in range(2):
        connection.request("GET", "/v1/versions/1/1/files/0", headers={"Range": f"bytes=0-{MOST_BLOCKS * BLOCK - 1}"})
        bodies.append(connection.getresponse().read())
    connection.close()
    return bodies
