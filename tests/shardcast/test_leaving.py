"""Cancelling a client or a request takes effect at once, even at the moment of a time-out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shardcast.client import Client
from shardcast.download.peer_client import PeerClient
from tests.kit.shardcast import QUICK
from tests.kit.silent_server import SilentServer, as_it_falls_due

ANSWER_S = 0.5
SHORT = replace(QUICK, answer=timedelta(seconds=ANSWER_S))


async def test_closing_a_client_when_a_relay_times_out_ends_at_once(client_of: Callable[..., Client]) -> None:
    async with SilentServer() as relay, asyncio.timeout(60), client_of(relay.url, timeouts=SHORT):
        await relay.asked()
        await as_it_falls_due(ANSWER_S)


@pytest.mark.parametrize("ask", [PeerClient.probe, PeerClient.listing])
async def test_cancelling_a_request_at_its_timeout_raises_cancelled_error(
    ask: Callable[[PeerClient, str], Coroutine[Any, Any, object]],
) -> None:
    async with SilentServer() as relay, PeerClient(timeouts=SHORT) as upstream:
        asking = asyncio.create_task(ask(upstream, relay.url))
        await relay.asked()
        await as_it_falls_due(ANSWER_S)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
