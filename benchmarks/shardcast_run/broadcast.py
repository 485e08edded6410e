"""Section 1: one file from an origin over two relays to one client and to four, with three systems, in one run."""

from __future__ import annotations

import hashlib
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shardcast_run import ours, published
from benchmarks.shardcast_run.processes import Measured, all_stopped, role

PATIENCE = 300.0

PLAIN = "plain sockets, nothing checked"
VERIFIED = "plain sockets with the same hashes"
THEIRS = "shardcast 0.3.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    way: str
    clients: int
    seconds: float
    cpu_per_gb: float
    memory: dict[str, int]
    """Bytes of the largest process of each kind at its peak."""
    first_block: float | None = None
    """Share of the file that the origin had published when the first client had verified a block."""


def plain(source: Path, folder: Path, clients: int) -> Row:
    """Runs bare sockets that check nothing; the origin sends the trainer's own file and writes none."""
    return _sockets(PLAIN, source, folder, clients, of_origin=[source])


def verified(source: Path, folder: Path, clients: int) -> Row:
    """Runs bare sockets that hash and write as muster's must, including the origin."""
    return _sockets(VERIFIED, source, folder, clients, of_origin=[source, folder / "origin.bin"])


def theirs(python: Path, source: Path, folder: Path, clients: int, *, filled: bool) -> list[Row]:
    """Runs the published package; with relays filled before its clients start, timed by its clock and by ours."""
    ran = published.run(python, source, folder, clients=clients, filled=filled, port=free_port)
    check_copies(source, folder.glob("client*.bin"), clients)
    if not filled:
        return [_row(f"{THEIRS}, its defaults", clients, ran.seconds, ran.processes, source)]
    return [
        _row(f"{THEIRS}, relays filled before", clients, ran.seconds, ran.processes, source),
        _row(f"{THEIRS}, the same, by our clock", clients, ran.since_first_byte, ran.processes, source),
    ]


def muster(source: Path, folder: Path, clients: int) -> Row:
    """Runs muster's shardcast."""
    ran = ours.run(source, folder, clients=clients)
    check_copies(source, folder.glob("client*/*/*.safetensors"), clients)
    return _row("muster", clients, ran.seconds, ran.processes, source, first_block=ran.first_block)


@contextmanager
def room(at: Path | None) -> Iterator[Path]:
    """Yields an empty folder and removes it afterwards."""
    path = Path(tempfile.mkdtemp(prefix="muster-bench-", dir=at))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def touch_memory(size: int, at: Path | None) -> None:
    """Makes the host of a virtual machine provide the memory for files of this size before the measurement.

    Where memory is provided at the first access, writing into it costs the kernel several times as much with any way of
    sending, and the first measured system would pay for all.
    """
    with room(at) as folder, (folder / "touched").open("wb") as file:
        piece = bytes(1 << 20)
        for _ in range(size >> 20):
            file.write(piece)


def check_copies(source: Path, copies: Iterator[Path], expected: int) -> None:
    """Raises an error if a system delivered anything other than the file."""
    found = list(copies)
    digests = {digest(copy) for copy in found}
    if len(found) != expected or digests != {digest(source)}:
        raise RuntimeError(f"{len(found)} copies of {expected}, and not all of them are the file")


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_port() -> int:
    """Returns a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def show(rows: list[Row], size: int) -> None:
    """Prints the table and the claims."""
    print(f"\nbroadcast of {size / 2**20:.0f} MiB, origin -> 2 relays -> clients, all verified at the end")
    print(
        "Time runs from the trainer's first byte, if nothing else is said; a delivered GB is 1e9 bytes at one client,\n"
        "its CPU seconds are those of all processes. Every way writes the files of relays and clients."
    )
    heads = (
        f"{'clients':>8}{'seconds':>9}{'CPU-s/GB':>10}{'MiB: origin':>13}{'relay':>7}{'client':>8}{'1st block at':>14}"
    )
    print(" " * 40 + heads)
    for row in rows:
        memory = [f"{row.memory.get(kind, 0) / 2**20:.0f}" for kind in ("origin", "relay", "client")]
        first = "" if row.first_block is None else f"{row.first_block:.1%}"
        print(
            f"{row.way:<40}{row.clients:>8}{row.seconds:>9.2f}{row.cpu_per_gb:>10.2f}"
            f"{memory[0]:>13}{memory[1]:>7}{memory[2]:>8}{first:>14}"
        )
    for clients in sorted({row.clients for row in rows}):
        _compare([row for row in rows if row.clients == clients], clients)


def _sockets(way: str, source: Path, folder: Path, clients: int, *, of_origin: list[Path]) -> Row:
    module = "plain" if way == PLAIN else "verified"
    started: list[Measured] = []

    def start(name: str, *arguments: object) -> Measured:
        started.append(Measured(name, role(module, *arguments), folder=folder))
        return started[-1]

    with all_stopped(started):
        origin = start("origin", "origin", *of_origin)
        above = origin.wait_for("port")["port"]
        relays = [start(f"relay{number}", "relay", above, folder / f"relay{number}.bin") for number in range(2)]
        ports = [each.wait_for("port")["port"] for each in relays]
        fetching = [start(f"client{n}", "client", folder / f"client{n}.bin", *ports) for n in range(clients)]
        for each in fetching:
            each.wait_for("ready")
        for each in started:
            each.forget_start()
        origin.tell("go")
        began = origin.wait_for("began")["began"]
        ended = max(float(each.wait_for("done", patience=PATIENCE)["done"]) for each in fetching)
        for each in started:
            each.look()
    check_copies(source, folder.glob("client*.bin"), clients)
    return _row(way, clients, ended - began, started, source)


def _compare(rows: list[Row], clients: int) -> None:
    mine = next((row for row in rows if row.way == "muster"), None)
    if mine is None:
        return
    told = []
    for row in rows:
        if row.way.startswith(THEIRS):
            told.append(f"{row.seconds / mine.seconds:.1f} times as fast as {row.way}")
        elif row.way == PLAIN:
            told.append(f"{mine.seconds / row.seconds:.2f} times the plain sockets' time (claimed: at most 2)")
        elif row.way == VERIFIED:
            share = (
                f"{mine.seconds / row.seconds:.2f} times the time and {mine.cpu_per_gb / row.cpu_per_gb:.2f} the CPU"
            )
            told.append(f"{share} of plain sockets with the same hashes, which is the floor")
    print(f"{clients} client{'s' * (clients > 1)}: muster is " + "; ".join(told))


def _row(
    way: str, clients: int, seconds: float, processes: list[Measured], source: Path, *, first_block: float | None = None
) -> Row:
    delivered = clients * source.stat().st_size / 1e9
    memory: dict[str, int] = {}
    for each in processes:
        kind = each.name.rstrip("0123456789")
        memory[kind] = max(memory.get(kind, 0), each.cost.largest)
    return Row(
        way=way,
        clients=clients,
        seconds=seconds,
        cpu_per_gb=sum(each.cost.cpu_s for each in processes) / delivered,
        memory=memory,
        first_block=first_block,
    )
