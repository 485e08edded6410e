"""Rate limits allow their burst, hold on average, and use bounded memory.

The address of a caller behind a trusted proxy comes from the proxy.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput, RateLimited
from protocol.http.rates import CallerAddresses, IpRates, Rate
from protocol.redis.connection import RedisKeys, connect_redis
from protocol.runtime.clock import ManualClock

SECOND = timedelta(seconds=1)


def taken(rates: IpRates, ip: str) -> bool:
    try:
        rates.admit(ip)
    except RateLimited:
        return False
    return True


@given(st.lists(st.floats(0, 3), max_size=60), st.integers(1, 5), st.integers(1, 5))
def test_no_pattern_of_calls_exceeds_rate_and_burst(pauses: list[float], count: int, burst: int) -> None:
    class Now(ManualClock):
        at = 0.0

        def monotonic(self) -> float:
            return self.at

    clock = Now()
    rates = IpRates(Rate(count=count, per=SECOND, burst=burst), clock=clock)
    passed = 0
    for pause in pauses:
        clock.at += pause
        passed += taken(rates, "192.0.2.1")
    assert passed <= burst + clock.at * count + 1e-6


async def test_waiting_for_retry_after_is_sufficient(clock: ManualClock) -> None:
    rates = IpRates(Rate(count=3, per=SECOND, burst=2), clock=clock)
    for _ in range(2):
        rates.admit("192.0.2.1")
    with pytest.raises(RateLimited) as caught:
        rates.admit("192.0.2.1")
    await clock.turn(caught.value.retry_after + timedelta(microseconds=1))
    rates.admit("192.0.2.1")


def test_the_memory_of_callers_is_bounded_and_keeps_the_busiest(clock: ManualClock) -> None:
    rates = IpRates(Rate(count=1, per=timedelta(hours=1), burst=2), clock=clock, most=100)
    rates.admit("192.0.2.1")
    for number in range(99):
        rates.admit(f"10.0.{number}.1")
    rates.admit("192.0.2.1")
    for number in range(99):
        rates.admit(f"10.1.{number}.1")
    assert len(rates) == 100
    assert not taken(rates, "192.0.2.1")


def test_an_ipv6_network_counts_as_one_caller(clock: ManualClock) -> None:
    rates = IpRates(Rate(count=1, per=timedelta(hours=1), burst=1), clock=clock)
    assert taken(rates, "2001:db8::1")
    assert not taken(rates, "2001:db8::ffff:2")
    assert taken(rates, "2001:db8:0:1::1")
    assert taken(rates, "::ffff:192.0.2.1")
    assert not taken(rates, "192.0.2.1")


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        ("203.0.113.9", ["1.1.1.1"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["6.6.6.6, 1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["6.6.6.6", "1.1.1.1, 10.0.0.2"], "1.1.1.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["1.1.1.1, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["nonsense, 1.1.1.1"], "1.1.1.1"),
        ("::ffff:10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        (None, ["1.1.1.1"], "local"),
    ],
)
def test_the_callers_address_is_the_one_seen_by_the_nearest_trusted_proxy(
    peer: str | None, forwarded: list[str], caller: str
) -> None:
    assert CallerAddresses(["10.0.0.0/8"]).of(peer, forwarded) == caller


def test_no_proxy_is_trusted_unless_configured() -> None:
    assert CallerAddresses().of("127.0.0.1", ["1.1.1.1"]) == "127.0.0.1"
    with pytest.raises(InvalidInput):
        CallerAddresses(["everywhere"])


@pytest.mark.parametrize("count", [0, -1])
def test_a_rate_of_zero_is_refused(count: int) -> None:
    with pytest.raises(InvalidInput):
        Rate(count=count, per=SECOND, burst=1)


def test_a_part_of_a_redis_key_cannot_change_the_other_parts() -> None:
    keys = RedisKeys("7")
    assert keys.of("node", "0xAB") == "muster:{7}:node:0xAB"
    for part in ("a:b", "", "}", "{"):
        with pytest.raises(InvalidInput):
            keys.of("node", part)


def test_an_invalid_redis_url_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidInput) as caught:
        connect_redis("http://:hunter2@host")
    assert "hunter2" not in str(caught.value)
