"""Section 3: the same question with links that the kernel shapes, relays' links too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.shardcast_run.broadcast import check_copies
from benchmarks.shardcast_run.namespaces import network
from benchmarks.shardcast_run.processes import Measured, all_stopped, role

PATIENCE = 300.0
RELAYS = 2


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
    """Bytes over the narrowest link on the way: a client's, or its share of the relays'."""


def measure(source: Path, folder: Path, *, clients: int, megabits: float, relay_megabits: float) -> Row:
    """The origin's link unhindered; each relay and each client in a namespace of its own, behind a link of its rate."""
    started: list[Measured] = []
    with network() as net, all_stopped(started):

        def start(name: str, command: list[str]) -> Measured:
            started.append(Measured(name, command, folder=folder))
            return started[-1]

        here = role("ours", "origin", source, folder / "origin", net.hub.address)
        origin = start("origin", net.hub.inside(here))
        above = f"{net.hub.address}:{origin.wait_for('port')['port']}"
        relays = []
        for number in range(RELAYS):
            machine = net.machine(f"relay{number}", megabits=relay_megabits)
            command = role("ours", "relay", above, folder / f"relay{number}", machine.address)
            port = start(f"relay{number}", machine.inside(command)).wait_for("port")["port"]
            relays.append(f"{machine.address}:{port}")
        fetching = []
        for number in range(clients):
            machine = net.machine(f"client{number}", megabits=megabits)
            command = role("ours", "client", folder / f"client{number}", *relays)
            fetching.append(start(f"client{number}", machine.inside(command)))
        for each in fetching:
            each.wait_for("ready")
        for each in started:
            each.forget_start()
        origin.tell("go")
        began = float(origin.wait_for("began")["began"])
        done = [each.wait_for("done", patience=PATIENCE) for each in fetching]
        for each in started:
            each.look()
    check_copies(source, folder.glob("client*/*/*.safetensors"), clients)
    narrowest = min(megabits, RELAYS * relay_megabits / clients) * 1e6
    size = source.stat().st_size
    return Row(
        clients=clients,
        seconds=max(float(each["done"]) for each in done) - began,
        twice=sum(int(each["received"]) for each in done) / (clients * size) - 1,
        cpu_s=sum(each.cost.cpu_s for each in started),
        ideal=size * 8 / narrowest,
    )


def show(rows: list[Row], *, size: int, megabits: float, relay_megabits: float) -> None:
    """Prints the table, and what of it is claimed."""
    print(
        f"\n{size / 2**20:.0f} MiB over {RELAYS} relays behind links of {relay_megabits:g} Mb/s to clients "
        f"behind links of {megabits:g} Mb/s (network namespaces, tc tbf)"
    )
    print(f"{'clients':>8}{'seconds':>9}{'links alone':>13}{'sent twice':>12}{'CPU-s':>7}")
    for row in rows:
        print(f"{row.clients:>8}{row.seconds:>9.2f}{row.ideal:>13.2f}{row.twice:>12.1%}{row.cpu_s:>7.1f}")
    times = [row.seconds for row in rows]
    print(f"slowest over fastest: {max(times) / min(times):.2f} (claimed: at most 1.15)")
