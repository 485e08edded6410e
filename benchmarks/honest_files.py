"""Honest files of one engine, made for `benchmarks.validator` or judged here.

.tools/vllm/bin/python -m benchmarks.honest_files --engine vllm --dtype bfloat16 --batch 64 --files 100 --to DIR
.venv/bin/python -m benchmarks.honest_files --judge DIR

vLLM lives in an environment of its own, so making and judging are two commands. Judging looks at every row, by the
limits that are shipped or by those of `--calibration`, and prints how many files were accepted and why others were not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.attack_tries import Batch, Tally, copy_base, node, read_list, run_all, write_list
from benchmarks.ending import end_in_order
from cli.devnet.cheats.cheat import Trick
from cli.devnet.cheats.workshop import Workshop
from rollouts.engines.interface import Dtype, EngineName
from rollouts.engines.opening import open_engine
from rollouts.engines.vllm.settings import prepare_process

LIST = "files.jsonl"
_CHUNK = 20


def main() -> None:
    """Makes files, and says which they are in `DIR/files.jsonl`; or judges those of some folders."""
    parser = argparse.ArgumentParser(description="Makes honest files, or judges them.")
    parser.add_argument("--engine", type=EngineName, default=EngineName.VLLM)
    parser.add_argument("--dtype", type=Dtype, default=Dtype.FLOAT32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the index of the first slot")
    parser.add_argument("--to", type=Path, help="makes them, in this folder")
    parser.add_argument("--judge", type=Path, nargs="+", help="judges those of these folders")
    parser.add_argument("--calibration", type=Path, default=None, help="limits; default: those that were shipped")
    parser.add_argument("--processes", type=int, default=2)
    told = parser.parse_args()
    if told.to is not None:
        _make(told)
    if told.judge:
        _judge(told)


def _make(told: argparse.Namespace) -> None:
    prepare_process()
    torch.set_num_threads(1)
    told.to.mkdir(parents=True)
    version = told.to / "version"
    copy_base(version)
    engine = open_engine(told.engine, dtype=told.dtype, device="cpu", max_batch=told.batch)
    with Workshop(engine, version, history=(), home=told.to, node=node()) as workshop:
        made = (
            workshop.hand_in(Trick(), workshop.grant(told.first + number, groups=1)) for number in range(told.files)
        )
        write_list(told.to / LIST, [one for one in made if one is not None])


def _judge(told: argparse.Namespace) -> None:
    batches = [
        Batch(name="", tries=_CHUNK, first=first, files=folder / LIST)
        for folder in told.judge
        for first in range(0, len(read_list(folder / LIST)), _CHUNK)
    ]
    whole = Tally()
    tallies = run_all(batches, processes=told.processes, calibration=told.calibration, progress=lambda _: None)
    for tally in tallies.values():
        whole.merge(tally)
    print(f"{whole.tries} files: {dict(whole.outcomes)}; {dict(whole.reasons)}")
    for words in whole.words:
        print(words)


if __name__ == "__main__":
    end_in_order()
    main()
