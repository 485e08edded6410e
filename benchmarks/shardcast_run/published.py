"""Runs the published shardcast 0.3.2 as its users do: installed from PyPI into a separate environment.

Only its commands and the library calls of its README are used. It needs three preparations: `wget` must be installed,
every server's folder needs a file `data1.bin` for its bandwidth test, and its processes must not run that test at the
same moment, because they all use one file in /tmp.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shardcast_run.processes import Measured, all_stopped

RELEASE = "shardcast==0.3.2"
PATIENCE = 600.0

ORIGIN = """
import json, shutil, sys, time
import shardcast
source, data, port = sys.argv[1:]
shardcast.initialize(data_dir=data, port=int(port))
print(json.dumps({"port": int(port)}), flush=True)
sys.stdin.readline()
print(json.dumps({"began": time.monotonic()}), flush=True)
shutil.copyfile(source, source + ".written")
version = shardcast.broadcast(source + ".written")
print(json.dumps({"published": time.monotonic(), "version": version}), flush=True)
sys.stdin.readline()
"""

CLIENT = """
import json, sys, time
from shardcast import ClientNode
target, folder, *servers = sys.argv[1:]
node = ClientNode(servers, folder)
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
while True:
    versions = node.list_available_versions()
    if versions and node.download_version(max(versions), target):
        break
    time.sleep(0.2)
print(json.dumps({"done": time.monotonic()}), flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True, slots=True)
class Published:
    """The result of one run of the published package."""

    seconds: float
    since_first_byte: float
    """The same measured by our clock: from the trainer's first byte on."""
    processes: list[Measured]


def environment(folder: Path) -> Path:
    """Creates an environment with the release, or uses an existing one; returns the path of its Python."""
    if shutil.which("wget") is None:
        raise RuntimeError("shardcast 0.3.2 downloads with wget, and there is none (Debian: apt install wget)")
    python = folder.absolute() / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", RELEASE], check=True)
    return python


def run(python: Path, source: Path, folder: Path, *, clients: int, filled: bool, port: Callable[[], int]) -> Published:
    """Runs an origin, two middle nodes and clients.

    Args:
        python: The Python of the environment.
        source: The file.
        folder: The folder for its files.
        clients: The number of clients, started together.
        filled: Its best case: the middle nodes poll every second and have everything before the clients start, and only
            the time after that is counted. Otherwise its defaults, from the trainer's first byte on.
        port: Returns free ports.
    """
    started: list[Measured] = []

    def start(name: str, *command: object) -> Measured:
        started.append(Measured(name, [str(part) for part in (python, *command)], folder=folder, cwd=folder))
        return started[-1]

    with all_stopped(started):
        above = port()
        _measuring_file(folder / "origin")
        origin = start("origin", "-c", ORIGIN, source, folder / "origin", above)
        origin.wait_for("port")
        servers = []
        often = ("--check-interval", "1") if filled else ()
        for number in range(2):
            listening = port()
            servers.append(f"http://127.0.0.1:{listening}")
            _measuring_file(folder / f"relay{number}")
            command = ("-m", "shardcast.middle_node", "--upstream", f"http://127.0.0.1:{above}", *often)
            start(f"relay{number}", *command, "--data-dir", folder / f"relay{number}", "--port", listening)
            _until_listening(listening)
        fetching = []
        for number in range(clients):
            files = (folder / f"client{number}.bin", folder / f"temp{number}")
            fetching.append(start(f"client{number}", "-c", CLIENT, *files, *servers))
            fetching[-1].wait_for("ready")
        for each in started:
            each.forget_start()
        origin.tell("go")
        wrote: float = origin.wait_for("began")["began"]
        began = wrote
        if filled:
            origin.wait_for("published", patience=PATIENCE)
            for number in range(2):
                _until_filled(folder / f"relay{number}", source.stat().st_size)
            began = time.monotonic()
        for each in fetching:
            each.tell("go")
        ended = max(float(each.wait_for("done", patience=PATIENCE)["done"]) for each in fetching)
        for each in started:
            each.look()
    return Published(ended - began, ended - wrote, started)


def _measuring_file(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "data1.bin").write_bytes(bytes(1 << 20))


def _until_listening(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise TimeoutError("a middle node does not listen")


def _until_filled(folder: Path, size: int) -> None:
    until = time.monotonic() + PATIENCE
    while sum(path.stat().st_size for path in folder.rglob("shard_*.bin")) < size:
        if time.monotonic() > until:
            raise TimeoutError(f"{folder} was not filled")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit("run benchmarks.shardcast")
