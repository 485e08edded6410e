"""Measures signed heartbeats on one core of orchestrator: rate, latency and the effect of pool size.

    python -m benchmarks.heartbeats [BEATS]

Claims: 3,000 a second at p99 < 20 ms, and a heartbeat at 10,000 known nodes costs at most 1.2 times that at 100.
Real Redis with its append-only file, real signatures both ways, HTTP over loopback; requests are signed beforehand.
"""

from __future__ import annotations

import platform
import sys
import time

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import (
    CONNECTIONS,
    node_keys,
    percentile,
    redis_server,
    send_heartbeats,
    warm_orchestrator,
)
from protocol.identity import secp256k1


def main(number: int = 20_000) -> None:
    """Measures and prints."""
    with redis_server() as url:
        keys = node_keys(10_000)
        rows = []
        for known in (100, 10_000, 100, 10_000):
            with warm_orchestrator(url, keys[:known]) as (port, pid):
                beats = send_heartbeats(port, pid, keys[:known], number)
            load = beats.load
            rows.append((known, load.sent / load.seconds, beats.cpu_s * 1e6, load.latencies_ms, load.good, load.sent))
    print(f"\nsigned heartbeats, one core, {CONNECTIONS} connections, Python {platform.python_version()}")
    print(f"{'known nodes':>12} {'beats/s':>9} {'CPU µs/beat':>12} {'p50 ms':>8} {'p99 ms':>8} {'good':>14}")
    for known, rate, cost, latencies, good, sent in rows:
        middle, tail = percentile(latencies, 0.5), percentile(latencies, 0.99)
        print(f"{known:>12,} {rate:>9,.0f} {cost:>12.0f} {middle:>8.1f} {tail:>8.1f} {good:>7}/{sent}")
    small = min(cost for known, _, cost, *_ in rows if known == 100)
    large = min(cost for known, _, cost, *_ in rows if known == 10_000)
    print(f"cost of a beat at 10,000 nodes: {large / small:.2f} times that at 100 (claimed: at most 1.20)")
    print(f"best rate: {max(row[1] for row in rows):,.0f}/s (claimed: at least 3,000)")
    check, sign = ecdsa()
    print(
        f"bottleneck: the process's CPU; of {small:.0f} µs, checking a signature is {check:.0f}, making one {sign:.0f}"
    )


def ecdsa() -> tuple[float, float]:
    """Returns the microseconds to check and to make a signature."""
    key = node_keys(1)[0]
    digest = secp256k1.personal_hash(b"x")
    signature = key.sign_hash(digest)
    started = time.perf_counter()
    for _ in range(2000):
        secp256k1.recover(digest, signature)
    checked = time.perf_counter()
    for _ in range(2000):
        key.sign_hash(digest)
    return (checked - started) / 2000 * 1e6, (time.perf_counter() - checked) / 2000 * 1e6


if __name__ == "__main__":
    end_in_order()
    main(*(int(argument) for argument in sys.argv[1:]))
