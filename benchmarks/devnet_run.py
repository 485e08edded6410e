"""Runs whole devnets for several seeds; `python -m benchmarks.devnet_run`.

Each run is what `make devnet` does, in a separate folder: wall time from start to end, held-out accuracy before and
after, the delay until files are judged, and the idle time of trainer and workers, beside the idle time predicted from
the stages' times. `--asynchrony on-policy` compares with a run without generation ahead, on the same processes;
`--runtime docker` uses containers. `--preset smollm2` trains the pretrained chat model instead: three seeds take half
an hour or more. Memory is the sum over all processes of the run (pages that several share count in part), and
disk is the run's folder; both are the largest values seen, looked at every two seconds. The machine should be otherwise
idle.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order

_GREEDY = re.compile(r"rose by .*: from ([\d.]+%) to ([\d.]+%)")
_VERDICT = re.compile(r"^upload to provisional verdict +(\d+) +(.+? m?s) +(.+? m?s)$", re.MULTILINE)
_STAGE = r"^{} .* (\d+%) +(\d+%)?$"


_LOOK_SECONDS = 2.0


@dataclass(slots=True)
class Usage:
    """Largest values of a run, in bytes.

    Args:
        memory: Proportional set size of all its processes.
        trainer: Resident memory of the trainer.
        disk: Allocated blocks of the files in its folder, hard links counted once.
    """

    memory: int = 0
    trainer: int = 0
    disk: int = 0

    def look(self, pid: int, home: Path) -> None:
        """Compares the present values with the largest ones."""
        memory = 0
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with suppress(psutil.Error):  # a process may end meanwhile
                memory += process.memory_full_info().pss
                if {"trainer", "run"} <= set(process.cmdline()):
                    self.trainer = max(self.trainer, process.memory_info().rss)
        self.memory = max(self.memory, memory)
        self.disk = max(self.disk, _allocated(home))


def _allocated(folder: Path) -> int:
    seen: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - many files, every two seconds
                seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def run(home: Path, *, seed: int, options: Sequence[str]) -> tuple[int, float, str, Usage]:
    """Runs one devnet; returns its exit code, seconds, report and usage."""
    since, usage = time.perf_counter(), Usage()
    command = [sys.executable, "-m", "cli", "devnet", "--plain", "--directory", str(home), "--seed", str(seed)]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                usage.look(process.pid, home)
            time.sleep(_LOOK_SECONDS)
    report = home / "report" / "report.txt"
    return process.returncode, time.perf_counter() - since, report.read_text() if report.exists() else "", usage


def row(code: int, seconds: float, report: str, usage: Usage) -> tuple[str, ...]:
    """Returns the row of a run."""
    accuracy, verdict = _GREEDY.search(report), _VERDICT.search(report)
    idle = [re.search(_STAGE.format(stage), report, re.MULTILINE) for stage in ("training", "generation")]
    return (
        f"{seconds:.0f} s",
        " → ".join(accuracy.groups()) if accuracy else "-",
        f"{verdict[2]} / {verdict[3]}" if verdict else "-",
        *[f"{found[1]} ({found[2] or '-'})" if found else "-" for found in idle],
        f"{usage.memory / 1e9:.1f} / {usage.trainer / 1e9:.1f} GB",
        f"{usage.disk / 1e9:.1f} GB",
        "yes" if code == 0 else f"NO ({code})",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all devnets and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--preset", default="answers", help="the task that is learned, such as smollm2")
    parser.add_argument("--asynchrony", default=None, help="a row each for every seed; default: by the preset")
    parser.add_argument("--runtime", default="process")
    parser.add_argument("--steps", default=None, help="default: 40, or the preset's")
    options = parser.parse_args(arguments)
    small = options.preset == "answers"
    steps = options.steps or ("40" if small else None)
    asynchronies = (options.asynchrony or ("two-step,on-policy" if small else "")).split(",")
    table = Table(title=f"preset {options.preset}, {options.runtime} runtime")
    head = ("asynchrony", "seed", "wall time", "greedy, held out", "verdict p50 / p99", "trainer idle (predicted)")
    for column in (*head, "workers idle (predicted)", "memory: all / trainer", "disk", "all criteria"):
        table.add_column(column)
    for asynchrony in asynchronies:
        for seed in map(int, options.seeds.split(",")):
            chosen = ["--preset", options.preset, "--runtime", options.runtime]
            chosen += ["--asynchrony", asynchrony] if asynchrony else []
            chosen += ["--steps", steps] if steps else []
            with tempfile.TemporaryDirectory() as home:
                told = row(*run(Path(home) / "net", seed=seed, options=chosen))
            print(asynchrony, seed, *told, file=sys.stderr, flush=True)
            table.add_row(asynchrony or "the preset's", str(seed), *told)
    Console(width=170).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
