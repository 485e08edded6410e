"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.chain import development_chain, development_process
from tests.kit.gateway import GatewayUnderTest, running_gateway
from tests.kit.world import founded, world

__all__ = ["development_chain", "development_process", "founded", "gateway", "world"]


@pytest.fixture
def gateway(redis_url: str) -> Iterator[GatewayUnderTest]:
    """One replica with its loops."""
    with running_gateway(redis_url) as found:
        yield found
