"""Runs whole devnets for several seeds; `python -m benchmarks.devnet_run`.

Each run is what `make devnet` does, in a separate folder: wall time from start to end, held-out accuracy before and
after, the delay until files are judged, and the idle time of trainer and workers, beside the idle time predicted from
the stages' times. `--asynchrony on-policy` compares with a run without generation ahead, on the same processes;
`--runtime docker` uses containers. The machine should be otherwise idle.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order

_GREEDY = re.compile(r"rose by .*: from ([\d.]+%) to ([\d.]+%)")
_VERDICT = re.compile(r"^upload to provisional verdict +(\d+) +(.+? m?s) +(.+? m?s)$", re.MULTILINE)
_STAGE = r"^{} .* (\d+%) +(\d+%)?$"


def run(home: Path, *, seed: int, options: Sequence[str]) -> tuple[int, float, str]:
    """Runs one devnet; returns its exit code, seconds and report."""
    since = time.perf_counter()
    command = [sys.executable, "-m", "cli", "devnet", "--plain", "--directory", str(home), "--seed", str(seed)]
    code = subprocess.run([*command, *options], stdout=subprocess.DEVNULL, check=False).returncode
    report = home / "report" / "report.txt"
    return code, time.perf_counter() - since, report.read_text() if report.exists() else ""


def row(code: int, seconds: float, report: str) -> tuple[str, ...]:
    """Returns the row of a run."""
    accuracy, verdict = _GREEDY.search(report), _VERDICT.search(report)
    idle = [re.search(_STAGE.format(stage), report, re.MULTILINE) for stage in ("training", "generation")]
    return (
        f"{seconds:.0f} s",
        " → ".join(accuracy.groups()) if accuracy else "-",
        f"{verdict[2]} / {verdict[3]}" if verdict else "-",
        *[f"{found[1]} ({found[2] or '-'})" if found else "-" for found in idle],
        "yes" if code == 0 else f"NO ({code})",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all devnets and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--asynchrony", default="two-step,on-policy", help="one row each, for every seed")
    parser.add_argument("--runtime", default="process")
    parser.add_argument("--steps", default="40")
    options = parser.parse_args(arguments)
    table = Table(title=f"{options.steps} steps, {options.runtime} runtime")
    head = ("asynchrony", "seed", "wall time", "greedy, held out", "verdict p50 / p99", "trainer idle (predicted)")
    for column in (*head, "workers idle (predicted)", "all criteria"):
        table.add_column(column)
    for asynchrony in options.asynchrony.split(","):
        for seed in map(int, options.seeds.split(",")):
            chosen = ("--asynchrony", asynchrony, "--runtime", options.runtime, "--steps", options.steps)
            with tempfile.TemporaryDirectory() as home:
                told = row(*run(Path(home) / "net", seed=seed, options=chosen))
            print(asynchrony, seed, *told, file=sys.stderr, flush=True)
            table.add_row(asynchrony, str(seed), *told)
    Console(width=140).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
