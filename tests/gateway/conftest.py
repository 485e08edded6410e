"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.gateway import GatewayUnderTest, running_gateway


@pytest.fixture
def gateway(redis_url: str) -> Iterator[GatewayUnderTest]:
    """One replica with its loops."""
    with running_gateway(redis_url) as found:
        yield found
