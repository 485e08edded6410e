"""Makes honest files of one engine for `benchmarks.validator`, or judges them.

.tools/vllm/bin/python -m benchmarks.honest_files --engine vllm --dtype bfloat16 --batch 64 --files 100 --to DIR
.venv/bin/python -m benchmarks.honest_files --judge DIR
.venv/bin/python -m benchmarks.honest_files --sharp 1 12 16 20 --files 2500

vLLM is installed in a separate environment, so making and judging are two commands. Judging examines every row with the
shipped limits or those of `--calibration`, and prints how many files were accepted and why others were not. `--sharp`
makes and judges files of the tests' tiny model with query and key weights multiplied by each of the factors: rounding
shifts single tokens of such models far.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.attack_tries import Batch, Tally, copy_base, node, read_list, run_all, write_list
from benchmarks.ending import end_in_order
from cli.devnet.attacks.attack import Trick
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST, Digest
from rollouts.calibration.limits import RolloutCalibration
from rollouts.checks import CheckedVersion
from rollouts.engines.opening import open_engine
from rollouts.engines.vllm.settings import prepare_process
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import write_rollouts
from rollouts.precision import Dtype, EngineName
from rollouts.recompute.place import VllmPlace
from rollouts.sandbox import Sandboxes
from tests.kit.attack_harness import AttackHarness
from tests.kit.rollout_files import GROUPS, PARTS, as_version, facts_of, make, sharpened
from tests.kit.tiny_model import tiny_folder
from validator.audit.draw import RowDraw
from validator.domain.submissions import SubmittedWork, WorkFacts
from validator.examination.channel import Order
from validator.examination.interface import Conclusion, NotJudged
from validator.examination.model_cache import ModelCache
from validator.examination.procedure import Procedure
from validator.examination.reading import LimitedReader
from validator.examination.settings import SLASH_MARGIN, ExaminerSettings
from validator.examination.vllm_cache import VllmCache

LIST = "files.jsonl"
_CHUNK = 20
_SHARP_CHUNK = 25
_BATCHES = (1, 3, 8, 12)


def main() -> None:
    """Makes files and lists them in `DIR/files.jsonl`, or judges the files of some folders."""
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
    parser.add_argument("--sharp", type=float, nargs="+", default=[], help="makes and judges files of sharp models")
    told = parser.parse_args()
    if told.sharp:
        _judge_sharp(told)
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
    with AttackHarness(engine, version, history=(), home=told.to, node=node()) as workshop:
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


def _judge_sharp(told: argparse.Namespace) -> None:
    chunks = [
        (factor, first, min(_SHARP_CHUNK, told.first + told.files - first))
        for factor in told.sharp
        for first in range(told.first, told.first + told.files, _SHARP_CHUNK)
    ]
    with ProcessPoolExecutor(told.processes, mp_context=get_context("spawn")) as pool:
        found = zip(chunks, pool.map(_sharp_files, chunks), strict=True)
        counted: defaultdict[float, Counter[str]] = defaultdict(Counter)
        for (factor, first, _), outcomes in found:
            print(f"weights x {factor:g}, files from {first}: {dict(outcomes)}", flush=True)
            counted[factor] += outcomes
    for factor, outcomes in counted.items():
        print(f"weights x {factor:g}: {dict(outcomes)}")
    print(f"all: {dict(sum(counted.values(), Counter[str]()))}")


def _sharp_files(chunk: tuple[float, int, int]) -> Counter[str]:
    """Returns the outcomes of some files and how many needed another prefill; each file has a different model."""
    factor, first, count = chunk
    torch.set_num_threads(1)
    outcomes: Counter[str] = Counter()
    with TemporaryDirectory() as folder, closing(Sandboxes()) as sandboxes:
        version = as_version(sharpened(tiny_folder(Path(folder) / "model", seed=first // _SHARP_CHUNK), factor))
        procedure = Procedure(
            reader=LimitedReader(sandboxes, most=ExaminerSettings(home=Path(folder)).most),
            vllm=VllmCache(VllmPlace(), budget=1 << 30),
            models=ModelCache(torch.device("cpu"), budget=1 << 30),
            calibration=RolloutCalibration.shipped(),
            dtype=None,
            margin=SLASH_MARGIN,
            scoring=timedelta(minutes=1),
        )
        for number in range(first, first + count):
            beacon = Digest("0x" + number.to_bytes(32, "big").hex())
            slot = replace(facts_of(version), parts=replace(PARTS, beacon=beacon))
            file = make(version, facts=slot, batch=_BATCHES[number % len(_BATCHES)])
            found = _examined(procedure, version, file, beacon, Path(folder) / "file")
            if isinstance(found, NotJudged):
                outcomes[found.code] += 1
                continue
            outcomes[found.outcome.name.lower()] += 1
            if found.timings is not None and "again" in found.timings.seconds:
                outcomes["prefilled again"] += 1
    return outcomes


def _examined(
    procedure: Procedure, version: CheckedVersion, file: RolloutFile, beacon: Digest, path: Path
) -> Conclusion | NotJudged:
    write_rollouts(path, file)
    header = file.header
    work = SubmittedWork(
        key=ZERO_DIGEST,
        pool_id=PARTS.pool_id,
        node=header.node,
        run=header.run,
        step=header.step,
        index=header.index,
        version=1,
        checkpoint=version.digest,
        beacon_block=1,
        salt=PARTS.salt,
        groups=GROUPS,
        max_units=GROUPS * version.recipe.units_per_group,
        sha256=Digest("0x" + hashlib.sha256(path.read_bytes()).hexdigest()),
        units=file.units,
        block=2,
    )
    order = Order(
        facts=WorkFacts(work=work, chain_id=PARTS.chain_id, work_ledger=ZERO_ADDRESS, beacon=beacon),
        file=path,
        folder=version.folder,
        draw=RowDraw(seed=None, share=1.0),
    )
    return procedure.examine(order, is_copy=lambda _: False)


if __name__ == "__main__":
    end_in_order()
    main()
