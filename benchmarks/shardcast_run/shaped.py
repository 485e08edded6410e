"""Section 3: the same measurement with links shaped by the kernel, including the relays' links."""

from __future__ import annotations

from pathlib import Path

from benchmarks.shardcast_run import limited
from benchmarks.shardcast_run.broadcast import check_copies
from benchmarks.shardcast_run.namespaces import network
from benchmarks.shardcast_run.processes import Measured, all_stopped, role

RELAYS = 2


def measure(source: Path, folder: Path, *, clients: int, megabits: float, relay_megabits: float) -> limited.Row:
    """Runs the origin without a limit, and each relay and client in a namespace behind a link of this rate."""
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
        narrowest = min(megabits, RELAYS * relay_megabits / clients)
        row = limited.broadcast(origin, fetching, started, source=source, megabits=narrowest)
    check_copies(source, folder.glob("client*/*/*.safetensors"), clients)
    return row


def show(rows: list[limited.Row], *, size: int, megabits: float, relay_megabits: float) -> None:
    """Prints the table and the claims."""
    title = (
        f"{size / 2**20:.0f} MiB over {RELAYS} relays behind links of {relay_megabits:g} Mb/s to clients "
        f"behind links of {megabits:g} Mb/s (network namespaces, tc tbf)"
    )
    limited.show(rows, title=title)
