"""Prometheus gauges of a service's chain: age of the newest block, and coin of the keys that pay gas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry, Gauge

from ledger.client import Ledger
from protocol.identifiers import Address
from protocol.runtime.clock import Clock

CHAIN_METRICS_EVERY = timedelta(seconds=30)
"""Interval at which services read these gauges. A reading costs one request, and one more for each key."""
_WEI = 10**18


class ChainMetrics:
    """Gauges of one service.

    Args:
        registry: Registry of the service.
        clock: Clock of the age.
    """

    def __init__(self, registry: CollectorRegistry, *, clock: Clock) -> None:
        self._clock = clock
        self._head_time = clock.now()
        age = Gauge(
            "muster_chain_head_age_seconds",
            "Age of the newest block that the service has read; before the first read, time since the start",
            registry=registry,
        )
        age.set_function(lambda: max(0.0, (self._clock.now() - self._head_time).total_seconds()))
        self._coin = Gauge(
            "muster_gas_coin",
            "Balance, in the chain's coin, of a key that pays gas",
            ("role", "address"),
            registry=registry,
        )

    async def read(self, ledger: Ledger, accounts: Mapping[str, Address]) -> None:
        """Reads the newest block's time and the balances.

        Args:
            ledger: Connection to the chain.
            accounts: Addresses that pay gas, by role.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        head_time, coins = await asyncio.gather(
            ledger.now(), asyncio.gather(*(ledger.balance(each) for each in accounts.values()))
        )
        self.update(
            head_time, {role: (place, coin / _WEI) for (role, place), coin in zip(accounts.items(), coins, strict=True)}
        )

    def update(self, head_time: datetime, coins: Mapping[str, tuple[Address, float]]) -> None:
        """Sets the gauges.

        Args:
            head_time: Time of the newest block.
            coins: Address and balance by role.
        """
        self._head_time = head_time
        self._coin.clear()  # keys that were replaced
        for role, (place, coin) in coins.items():
            self._coin.labels(role, place).set(coin)
