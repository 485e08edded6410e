"""Section 2: as many clients as you like, each behind a slow link, take as long as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.shardcast_run import ours
from benchmarks.shardcast_run.broadcast import check_copies
from benchmarks.shardcast_run.processes import Measured, all_stopped, role

PATIENCE = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of clients."""

    clients: int
    seconds: float
    twice: float
    """Bytes that clients were sent a second time, of the file's."""
    cpu_s: float
    """Of all processes, from the trainer's first byte on: whether the machine was the limit."""
    ideal: float
    """Bytes over the link's rate."""


def measure(source: Path, folder: Path, *, clients: int, megabits: float, delay_ms: float) -> Row:
    """Origin and relays unhindered; each client behind one link of this rate and round trip."""
    started: list[Measured] = []
    with all_stopped(started):
        origin, ports = ours.start_tree(started, source, folder)
        proxy = Measured("links", role("links", megabits, delay_ms, clients, *ports), folder=folder)
        started.append(proxy)
        links = proxy.wait_for("links")["links"]
        fetching = ours.start_clients(started, folder, links)
        for each in started:
            each.forget_start()
        origin.tell("go")
        began = float(origin.wait_for("began")["began"])
        done = [each.wait_for("done", patience=PATIENCE) for each in fetching]
        for each in started:
            each.look()
    check_copies(source, folder.glob("client*/*/*.safetensors"), clients)
    size = source.stat().st_size
    return Row(
        clients=clients,
        seconds=max(float(each["done"]) for each in done) - began,
        twice=sum(int(each["received"]) for each in done) / (clients * size) - 1,
        cpu_s=sum(each.cost.cpu_s for each in started),
        ideal=size * 8 / (megabits * 1e6),
    )


def show(rows: list[Row], *, size: int, megabits: float, delay_ms: float) -> None:
    """Prints the table, and what of it is claimed."""
    print(
        f"\n{size / 2**20:.0f} MiB over 2 relays to clients behind links of {megabits:g} Mb/s and {delay_ms:g} ms "
        "there and back each (a proxy of ours with a token bucket per client)"
    )
    print(f"{'clients':>8}{'seconds':>9}{'link alone':>12}{'sent twice':>12}{'CPU-s':>7}")
    for row in rows:
        print(f"{row.clients:>8}{row.seconds:>9.2f}{row.ideal:>12.2f}{row.twice:>12.1%}{row.cpu_s:>7.1f}")
    times = [row.seconds for row in rows]
    print(f"slowest over fastest: {max(times) / min(times):.2f} (claimed: at most 1.15)")
