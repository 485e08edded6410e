"""Section 2: several clients, each behind a slow link, take as long as one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.shardcast_run import limited, ours
from benchmarks.shardcast_run.broadcast import check_copies
from benchmarks.shardcast_run.processes import Measured, all_stopped, role


def measure(source: Path, folder: Path, *, clients: int, megabits: float, delay_ms: float) -> limited.Row:
    """Runs origin and relays without limits, and each client behind one link of this rate and round-trip time."""
    started: list[Measured] = []
    with all_stopped(started):
        origin, ports = ours.start_tree(started, source, folder)
        proxy = Measured("links", role("links", megabits, delay_ms, clients, *ports), folder=folder)
        started.append(proxy)
        links = proxy.wait_for("links")["links"]
        fetching = ours.start_clients(started, folder, links)
        row = limited.broadcast(origin, fetching, started, source=source, megabits=megabits)
    check_copies(source, folder.glob("client*/*/*.safetensors"), clients)
    return row


def show(rows: list[limited.Row], *, size: int, megabits: float, delay_ms: float) -> None:
    """Prints the table and the claims."""
    title = (
        f"{size / 2**20:.0f} MiB over 2 relays to clients behind links of {megabits:g} Mb/s and {delay_ms:g} ms "
        "there and back each (a proxy of ours with a token bucket per client)"
    )
    limited.show(rows, title=title)
