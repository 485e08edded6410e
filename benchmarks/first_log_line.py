"""Measures the time from `muster worker run` on a prepared machine to the first line of the task's log.

    python -m benchmarks.first_log_line [--runtime docker|process] [--times N]

A devnet with one worker is already running; the measured worker is started N times, each time as the same contributor,
who is already staked and registered. Printed: the time until it is a member, and until its first log line arrives.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.ending import end_in_order

WANTED_SECONDS = 20.0


def main() -> None:
    """Prints one row per start and the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", choices=["docker", "process"], default="process")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "net"
        devnet = subprocess.Popen(
            [
                *MUSTER,
                "devnet",
                "--plain",
                "--workers",
                "1",
                "--runtime",
                options.runtime,
                "--directory",
                str(directory),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            _until_ready(devnet)
            settings = _enlist(directory)
            taken = [_one_start(settings) for _ in range(options.times)]
        finally:
            devnet.send_signal(signal.SIGINT)
            devnet.communicate()
    for number, seconds in enumerate(taken, start=1):
        print(f"start {number}: first line after {seconds:.1f} s")
    print(
        f"median {statistics.median(taken):.1f} s with the {options.runtime} runtime; "
        f"wanted below {WANTED_SECONDS:.0f} s"
    )


MUSTER = [sys.executable, "-m", "cli"]


def _until_ready(devnet: subprocess.Popen[str]) -> None:
    assert devnet.stdout is not None
    for line in devnet.stdout:
        if "ready:" in line:
            return
    raise SystemExit("the devnet did not start")


def _enlist(directory: Path) -> Path:
    """Stakes and registers the measured contributor; returns the settings of its worker."""
    configured = [*MUSTER, "--config", str(directory / "muster.toml")]
    subprocess.run([*configured, "stake", "add", "50"], check=True, capture_output=True)
    subprocess.run([*configured, "node", "register"], check=True, capture_output=True)
    template = (directory / "workers" / "worker-1.toml").read_text()
    settings = directory / "measured.toml"
    settings.write_text(
        template.replace("keys/worker-1.json", "keys/node.json").replace("workers/worker-1", "measured")
    )
    return settings


def _one_start(settings: Path) -> float:
    began = time.monotonic()
    worker = subprocess.Popen([*MUSTER, "worker", "run", "--config", str(settings)], stderr=subprocess.DEVNULL)
    try:
        while time.monotonic() - began < 120:
            said = subprocess.run(
                [*MUSTER, "worker", "logs", "--config", str(settings)], capture_output=True, text=True, check=False
            )
            if "hello from" in said.stdout:
                return time.monotonic() - began
        raise SystemExit("no line within two minutes: " + json.dumps(said.stderr[-500:]))
    finally:
        subprocess.run(
            [*MUSTER, "worker", "leave", "--yes", "--config", str(settings)], capture_output=True, check=False
        )
        worker.wait(timeout=60)


if __name__ == "__main__":
    end_in_order()
    main()
