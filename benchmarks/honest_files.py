"""Honest files of an engine that lives in an environment of its own, made for `benchmarks.validator` to judge.

.tools/vllm/bin/python -m benchmarks.honest_files --engine vllm --dtype bfloat16 --batch 64 --files 100 --to DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.attack_tries import copy_base, node, write_list
from cli.devnet.cheats.cheat import Trick
from cli.devnet.cheats.workshop import Workshop
from rollouts.engines.interface import Dtype, EngineName
from rollouts.engines.opening import open_engine
from rollouts.engines.vllm.settings import prepare_process


def main() -> None:
    """Makes them, and says which they are in `DIR/files.jsonl`."""
    parser = argparse.ArgumentParser(description="Makes honest files.")
    parser.add_argument("--engine", type=EngineName, default=EngineName.VLLM)
    parser.add_argument("--dtype", type=Dtype, default=Dtype.FLOAT32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the index of the first slot")
    parser.add_argument("--to", type=Path, required=True)
    told = parser.parse_args()
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
        write_list(told.to / "files.jsonl", [one for one in made if one is not None])


if __name__ == "__main__":
    main()
