"""Measures runs over links slower than the machine: seconds, bytes sent twice, and the links alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shardcast_run.processes import Measured

PATIENCE = 300.0
FLAT = 1.15
"""The highest allowed ratio of the slowest to the fastest number of clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result for one number of clients."""

    clients: int
    seconds: float
    twice: float
    """Bytes sent to clients twice, relative to the file's size."""
    cpu_s: float
    """CPU seconds of all processes from the trainer's first byte on, which show whether the machine was the limit."""
    ideal: float
    """Bytes over the narrowest link: a client's, or its share of the relays' links."""


def broadcast(
    origin: Measured, clients: Sequence[Measured], started: Sequence[Measured], *, source: Path, megabits: float
) -> Row:
    """Has the trainer write, waits for every client, and returns the row.

    Args:
        origin: The origin that the trainer writes through.
        clients: Clients that are ready.
        started: All processes.
        source: The file that is written.
        megabits: Rate of the narrowest link, in Mbit/s.
    """
    for each in started:
        each.forget_start()
    origin.tell("go")
    began = float(origin.wait_for("began")["began"])
    done = [each.wait_for("done", patience=PATIENCE) for each in clients]
    for each in started:
        each.look()
    size = source.stat().st_size
    return Row(
        clients=len(clients),
        seconds=max(float(each["done"]) for each in done) - began,
        twice=sum(int(each["received"]) for each in done) / (len(clients) * size) - 1,
        cpu_s=sum(each.cost.cpu_s for each in started),
        ideal=size * 8 / (megabits * 1e6),
    )


def show(rows: Sequence[Row], *, title: str) -> None:
    """Prints the table and the claims."""
    print(f"\n{title}")
    print(f"{'clients':>8}{'seconds':>9}{'links alone':>13}{'sent twice':>12}{'CPU-s':>7}")
    for row in rows:
        print(f"{row.clients:>8}{row.seconds:>9.2f}{row.ideal:>13.2f}{row.twice:>12.1%}{row.cpu_s:>7.1f}")
    times = [row.seconds for row in rows]
    print(f"slowest over fastest: {max(times) / min(times):.2f} (claimed: at most {FLAT:g})")
