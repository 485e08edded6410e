"""Measures detection, false positives and cost of a validator; `python -m benchmarks.validator [--quick]`.

1. Every attack until it has forged `--tries` files: the share that is rejected, with the 95 % interval (Wilson). A file
   that equals the honest one of its slot is no forgery (`tests.kit.attack_comparison`): it is counted separately, and
   another slot is tried. Then `--honest` honest files over engines, types and batch shapes: the number rejected and
   slashed. Then attacks that cannot be distinguished.
2. Tokens per second of a validator that examines every row against those of the generator, on this machine; and the
   number of generators of its own size that one validator keeps up with at the audit floor, with recorded submissions.

`--only attacks` and `--only rates` run one of the two parts; `--only cheats`, `honest` and `close` a part of the first.
vLLM's honest files are made where `.tools/vllm` exists.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.attack_tries import (
    ACCEPTED,
    CLOSE,
    FORGED,
    NOT_JUDGED,
    REJECTED,
    SLOTS_FOR_A_TRY,
    Batch,
    Tally,
    run_all,
)
from benchmarks.ending import end_in_order
from benchmarks.validator_rates import show_rates
from cli.devnet.attacks.attack import End
from cli.devnet.attacks.registry import ATTACKS
from rollouts.precision import Dtype, EngineName

ROOT = Path(__file__).parents[1]
VLLM = ROOT / ".tools" / "vllm" / "bin" / "python"
CHUNK = 20
JUDGED = [name for name, cheat in ATTACKS.items() if cheat.end is End.SLASHED and not cheat.dialogues]
SHAPES = ((Dtype.FLOAT32, 64), (Dtype.FLOAT32, 7), (Dtype.FLOAT32, 1), (Dtype.BFLOAT16, 64), (Dtype.BFLOAT16, 1))
"""(Type, batch) of torch's honest files; each gets the same share of them."""

WHY = {
    "int8, in bfloat16": "bfloat16 rounds nearly as coarsely: unpaid, not slashed; would gain half the memory",
    "one step at 2e-4 behind, in bfloat16": "seen where limits are narrower than a step; gains every second broadcast",
    "one step at 1e-6 behind, in bfloat16": "most weights round to the same numbers; gains broadcasts, harms nobody",
    "one step at 1e-6 behind, in float32": "proofs hold bfloat16 of states that hardly moved; gains broadcasts",
    "temperature 0.8, in bfloat16": "few tokens differ, some by less than honest ones may; better rewards",
    "int8, in bfloat16, said to be vLLM's": "within vLLM's limits, and nobody sees the engine; gains half the memory",
    "two steps at 2e-4 behind, in bfloat16, said to be vLLM's": "within vLLM's limits; gains two of three broadcasts",
    "temperature 0.8, in bfloat16, said to be vLLM's": "few tokens differ, by less than vLLM's limits; better rewards",
}


def main() -> None:
    """Measures and prints."""
    told = _arguments()
    console = Console(width=150)
    began = time.monotonic()
    if told.only != "rates":
        _attacks(told, console)
    if told.only in {None, "rates"}:
        sizes = told.size or ("tiny" if told.quick else "tiny,small")
        show_rates(console, sizes=sizes, tokens=32 if told.quick else 256, rounds=1 if told.quick else told.rounds)
    console.print(f"{time.monotonic() - began:.0f} s in all, {told.processes} processes")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a validator catches, whom it harms, and what it costs.")
    parser.add_argument("--tries", type=int, default=100, help="of each cheat")
    parser.add_argument("--honest", type=int, default=3000, help="honest files, over all engines and shapes")
    parser.add_argument("--dtypes", default=",".join(Dtype), help="of honest files; each type has its part of --honest")
    parser.add_argument("--groups", type=int, default=4, help="in a file of what can't be told apart")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--calibration", type=Path, default=None, help="limits; default: those that were shipped")
    parser.add_argument("--only", choices=["attacks", "cheats", "honest", "close", "rates"], default=None)
    parser.add_argument("--size", default=None, help="models whose rates are measured: tiny,small,medium,wide,deep")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken")
    parser.add_argument("--quick", action="store_true", help="a few of everything, to see that it works")
    told = parser.parse_args()
    if told.quick:
        told.tries, told.honest = min(told.tries, 2), min(told.honest, 20)
    return told


def _attacks(told: argparse.Namespace, console: Console) -> None:
    with tempfile.TemporaryDirectory() as home:
        batches = [
            *(_cheating(told) if _wanted(told, "cheats") else ()),
            *(_honest(told, Path(home)) if _wanted(told, "honest") else ()),
            *(_close(told) if _wanted(told, "close") else ()),
        ]
        every, done, began = sum(batch.tries for batch in batches), 0, time.monotonic()

        def progress(batch: Batch) -> None:
            nonlocal done
            done += batch.tries
            print(f"\r{done} of {every} files, {time.monotonic() - began:.0f} s ", end="", file=sys.stderr, flush=True)

        tallies = run_all(batches, processes=told.processes, calibration=told.calibration, progress=progress)
        print(file=sys.stderr)
    if _wanted(told, "cheats"):
        _show_cheats(console, {name: tallies[Batch(name=name, tries=1, first=0).key] for name in JUDGED})
    if _wanted(told, "honest"):
        _show_honest(console, {shape: tally for (name, shape), tally in tallies.items() if not name})
    if _wanted(told, "close"):
        _show_close(console, told, {name: tally for (name, _), tally in tallies.items() if name in CLOSE})


def _wanted(told: argparse.Namespace, part: str) -> bool:
    return told.only in {None, "attacks", part}


def _apart(place: int) -> int:
    """Returns the first slot of an attack, after those of honest work and of earlier attacks."""
    return 1_000_000 * (1 + place)


def _cheating(told: argparse.Namespace) -> Iterable[Batch]:
    return _chunks(Batch(name=name, tries=told.tries, first=_apart(place)) for place, name in enumerate(JUDGED))


def _close(told: argparse.Namespace) -> Iterable[Batch]:
    return _chunks(
        Batch(
            name=name,
            tries=math.ceil(told.tries / 4),
            first=_apart(len(JUDGED) + place),
            dtype=dtype,
            groups=told.groups,
        )
        for place, (name, (_, dtype)) in enumerate(CLOSE.items())
    )


def _honest(told: argparse.Namespace, home: Path) -> list[Batch]:
    """Returns honest batches of torch, and of vLLM where it is installed."""
    shapes = len(SHAPES) + (2 if VLLM.exists() else 0)
    each = math.ceil(told.honest / shapes)
    batches = [
        Batch(name="", tries=each, first=10_000 * place, dtype=dtype, max_batch=max_batch)
        for place, (dtype, max_batch) in enumerate(SHAPES)
        if dtype in told.dtypes.split(",")
    ]
    if VLLM.exists():
        for place, dtype in enumerate(Dtype):
            if dtype not in told.dtypes.split(","):
                continue
            print(f"{each} honest files of vllm in {dtype.value} are made", file=sys.stderr)
            to, first = home / f"vllm-{dtype.value}", 500_000 + 10_000 * place
            command = [str(VLLM), "-m", "benchmarks.honest_files", "--dtype", dtype.value, "--files", str(each)]
            _quietly([*command, "--first", str(first), "--to", str(to)])
            files = to / "files.jsonl"
            batches.append(Batch(name="", tries=each, first=0, dtype=dtype, engine=EngineName.VLLM, files=files))
    return list(_chunks(batches))


def _quietly(command: list[str]) -> None:
    """Runs a command in vLLM's environment; shows its output only if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def _chunks(batches: Iterable[Batch]) -> Iterable[Batch]:
    """Divides a batch so that all processes are busy until the end."""
    for batch in batches:
        for start in range(0, batch.tries, CHUNK):
            apart = SLOTS_FOR_A_TRY if batch.name else 1
            yield replace(batch, first=batch.first + apart * start, tries=min(CHUNK, batch.tries - start))


def wilson(hits: int, tries: int, *, z: float = 1.96) -> tuple[float, float]:
    """Returns the 95 % interval of a share."""
    if not tries:
        return 0.0, 1.0
    share, square = hits / tries, z * z
    middle = share + square / (2 * tries)
    half = z * math.sqrt(share * (1 - share) / tries + square / (4 * tries * tries))
    low, high = ((middle + side * half) / (1 + square / tries) for side in (-1, 1))
    return max(0.0, low), min(1.0, high)


def _interval(hits: int, tries: int) -> str:
    low, high = wilson(hits, tries)
    return f"{low:.1%} to {high:.1%}"


def _show_cheats(console: Console, tallies: dict[str, Tally]) -> None:
    table = Table(title="Cheats: one group of 16 answers of the devnet's base, torch float32, every row looked at")
    for column in ("cheat", "forgeries", "not paid", "95 %", "slashed", "honest", "reasons"):
        table.add_column(column, justify="left" if column in {"cheat", "reasons"} else "right")
    for name, tally in tallies.items():
        caught = tally.outcomes[REJECTED] + tally.outcomes[FORGED]
        reasons = ", ".join(f"{reason} {count}" for reason, count in tally.reasons.most_common(3))
        table.add_row(
            name,
            str(tally.tries),
            f"{caught / tally.tries:.1%}",
            _interval(caught, tally.tries),
            str(tally.outcomes[FORGED]),
            f"{tally.equal_accepted} of {tally.equal}" if tally.equal else "",
            reasons,
        )
    console.print(table)
    lowest = min((tally.outcomes[REJECTED] + tally.outcomes[FORGED]) / tally.tries for tally in tallies.values())
    console.print(f"worst of all: {lowest:.1%} of forgeries not paid; wanted: 99 % of each")
    console.print(
        "honest: files besides that came out as the honest ones of their slots, to the byte; so many were accepted"
    )
    doors = [name for name, cheat in ATTACKS.items() if cheat.end is not End.SLASHED]
    console.print(f"stopped before a validator (tests/attacks/test_refusals.py): {', '.join(doors)}")


def _show_honest(console: Console, tallies: dict[str, Tally]) -> None:
    table = Table(title="Honest files of one group of 16 answers; verified by torch in the file's own type")
    for column in ("made by", "files", "rejected", "slashed", "not judged", "rejected, 95 %", "why"):
        table.add_column(column, justify="left" if column in {"made by", "why"} else "right")
    whole = Tally()
    for shape, tally in [*sorted(tallies.items()), ("all", whole)]:
        harmed = tally.outcomes[REJECTED] + tally.outcomes[FORGED]
        table.add_row(
            shape,
            str(tally.tries),
            str(tally.outcomes[REJECTED]),
            str(tally.outcomes[FORGED]),
            str(tally.outcomes[NOT_JUDGED]),
            _interval(harmed, tally.tries),
            "; ".join(tally.words[:1]) or ", ".join(reason for reason in tally.reasons if reason != "passed"),
        )
        if tally is not whole:
            whole.merge(tally)
    console.print(table)
    console.print("wanted: at most 0.1 % rejected, none slashed")


def _show_close(console: Console, told: argparse.Namespace, tallies: dict[str, Tally]) -> None:
    table = Table(title=f"What can't be told apart, or only just; files of {told.groups} groups of 16 answers")
    for column in ("what", "forgeries", "paid", "95 %", "slashed", "not judged", "honest", "why, and what it gains"):
        table.add_column(column, justify="left" if column in {"what", "why, and what it gains"} else "right")
    for name, tally in tallies.items():
        paid = tally.outcomes[ACCEPTED]
        table.add_row(
            name,
            str(tally.tries),
            f"{paid / tally.tries:.0%}",
            _interval(paid, tally.tries),
            str(tally.outcomes[FORGED]),
            str(tally.outcomes[NOT_JUDGED]),
            f"{tally.equal_accepted} of {tally.equal}" if tally.equal else "",
            WHY[name],
        )
    console.print(table)


if __name__ == "__main__":
    end_in_order()
    main()
