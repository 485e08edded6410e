"""Measures sending checkpoints from one origin to many machines: speed, cost and the savings of deltas.

    python -m benchmarks.shardcast [--sections broadcast,capped,shaped,deltas] [--size MIB] [--clients 1,4] ...

Claims, for 512 MiB over two relays: at least four times as fast as the published shardcast 0.3.2 at its best, at most
twice the time of bare sockets that check nothing, at most 4 CPU-seconds per delivered GB, less than 150 MiB resident in
every process, the first verified block at a client before a tenth is published; the same time within 15 % for one and
for eight clients whose links are the limit; and at a learning rate of 1e-6 a delta of at most 5 % of the bytes. The
same sockets with the hashes that the design demands are listed beside them: they are a lower bound for any sender that
verifies.

Time runs from the trainer's first written byte to the last client's last verified one; for shardcast 0.3.2 with filled
relays, also from the clients' start only. That release is installed from PyPI into a separate environment.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.ending import end_in_order
from benchmarks.shardcast_run import broadcast, capped, deltas, published, shaped
from benchmarks.shardcast_run.namespaces import NoNamespaces

SECTIONS = ("broadcast", "capped", "shaped", "deltas")


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    told = _arguments(arguments)
    sections = told.sections.split(",")
    if "broadcast" in sections:
        _broadcast(told)
    if "capped" in sections:
        _capped(told)
    if "shaped" in sections:
        _shaped(told)
    if "deltas" in sections:
        with broadcast.room(told.folder) as folder:
            rows = deltas.measure(folder, hidden=told.hidden, layers=told.layers, vocabulary=told.vocabulary)
        deltas.show(rows)


def _broadcast(told: argparse.Namespace) -> None:
    rows = []
    with _file(told.folder, told.size) as source:
        python = None if told.without_published else published.environment(told.environment)
        for clients in map(int, told.clients.split(",")):
            needed = (clients + 4) * source.stat().st_size  # a copy each for relays and trainer, and spare space
            broadcast.touch_memory(needed, told.folder)
            with broadcast.room(told.folder) as folder:
                rows.append(broadcast.plain(source, folder, clients))
            broadcast.touch_memory(needed, told.folder)
            with broadcast.room(told.folder) as folder:
                rows.append(broadcast.verified(source, folder, clients))
            broadcast.touch_memory(needed, told.folder)
            with broadcast.room(told.folder) as folder:
                rows.append(broadcast.muster(source, folder, clients))
            if python is not None:
                for filled in (True, False):
                    broadcast.touch_memory(needed, told.folder)
                    with broadcast.room(told.folder) as folder:
                        rows += broadcast.theirs(python, source, folder, clients, filled=filled)
        broadcast.show(rows, source.stat().st_size)


def _capped(told: argparse.Namespace) -> None:
    rows = []
    with _file(told.folder, told.capped_size) as source:
        for clients in map(int, told.capped_clients.split(",")):
            with broadcast.room(told.folder) as folder:
                rows.append(
                    capped.measure(source, folder, clients=clients, megabits=told.megabits, delay_ms=told.delay)
                )
        capped.show(rows, size=source.stat().st_size, megabits=told.megabits, delay_ms=told.delay)


def _shaped(told: argparse.Namespace) -> None:
    rows = []
    try:
        with _file(told.folder, told.capped_size) as source:
            for clients in map(int, told.capped_clients.split(",")):
                with broadcast.room(told.folder) as folder:
                    rows.append(
                        shaped.measure(
                            source,
                            folder,
                            clients=clients,
                            megabits=told.megabits,
                            relay_megabits=told.relay_megabits,
                        )
                    )
            shaped.show(rows, size=source.stat().st_size, megabits=told.megabits, relay_megabits=told.relay_megabits)
    except NoNamespaces as error:
        print(f"\nnot measured with links that the kernel shapes: {error}")


@contextmanager
def _file(at: Path | None, mebibytes: int) -> Iterator[Path]:
    """Makes a file of random bytes, which cannot be compressed."""
    with broadcast.room(at) as folder:
        path = folder / "source"
        with path.open("wb") as file:
            for _ in range(mebibytes):
                file.write(os.urandom(1 << 20))
        yield path


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shardcast")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="which of %(default)s")
    parser.add_argument("--folder", type=Path, help="where files are written; the system's place by default")
    parser.add_argument("--size", type=int, default=512, help="MiB of section 1's file")
    parser.add_argument("--clients", default="1,4", help="of section 1")
    parser.add_argument("--without-published", action="store_true", help="leave shardcast 0.3.2 out")
    parser.add_argument(
        "--environment", type=Path, default=Path(".tools/shardcast-0.3.2"), help="where shardcast 0.3.2 is installed"
    )
    parser.add_argument("--capped-size", type=int, default=48, help="MiB of the files of sections 2 and 3")
    parser.add_argument("--capped-clients", default="1,2,4,8", help="of sections 2 and 3")
    parser.add_argument("--megabits", type=float, default=48, help="a second on each client's link")
    parser.add_argument("--delay", type=float, default=80, help="ms there and back on each client's link")
    parser.add_argument("--relay-megabits", type=float, default=600, help="a second on each relay's link, section 3")
    parser.add_argument("--hidden", type=int, default=512, help="width of section 4's model")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=16_384)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    end_in_order()
    main(sys.argv[1:])
