"""Prints replay, proof and log-probability statistics of honest work and attacks; `python -m benchmarks.replay [FILE]`.

A small model is warmed up on the `letters` task, answers are generated in every way of the table, and a prefill with
the torch engine's arithmetic judges them: the statistics that limits apply to, and the number of rejected files. Honest
rows become the entries of a calibration, written to FILE if one is named. vLLM generates too where it can be imported
(`.tools/vllm/bin/python -m benchmarks.replay`). `MUSTER_FILES` sets the number of files per row (64 answers each),
`MUSTER_WARM_UP` the steps of training.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.letters_model import changed, further, warm_up
from benchmarks.rollout_files import as_file
from protocol.identifiers import ZERO_DIGEST
from rollouts.calibration.limits import CheckLimits, model_names
from rollouts.checks import Draws, gather
from rollouts.engines.interface import Engine, SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.environments import load_environment
from rollouts.files.samples import RolloutFile
from rollouts.models.facts import read_model
from rollouts.models.policy import Policy, load_policy
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters
from validator.calibration.figures import CalibrationFigures
from validator.calibration.limits import ArithmeticPair, limits_around, merged

FILES = int(os.environ.get("MUSTER_FILES", "32"))
WARM_UP = int(os.environ.get("MUSTER_WARM_UP", "600"))
GROUPS, EACH = 4, 16
RATE = 2e-4
PLAIN = SamplingParameters(max_new_tokens=12)
FRESH = b"\x99" * 32
SINGLE, HALF = Dtype.FLOAT32, Dtype.BFLOAT16


@dataclass(frozen=True)
class Row:
    """A way to generate and the arithmetic that verifies it."""

    name: str
    folder: str = "version"
    engine: EngineName = EngineName.TORCH
    dtype: Dtype = SINGLE
    verifier: Dtype = SINGLE
    batch: int = 64
    parameters: SamplingParameters = PLAIN
    fresh: bool = False
    honest: bool = False


def rows() -> Iterator[Row]:
    """Returns the rows of the table."""
    engines = [EngineName.TORCH, *([EngineName.VLLM] if find_spec("vllm") else [])]
    for engine in engines:
        for dtype, verifier in ((SINGLE, SINGLE), (HALF, HALF), (HALF, SINGLE)):
            for batch in (64, 1):
                name = f"{engine.value} {dtype.value}, batch {batch}"
                yield Row(name, engine=engine, dtype=dtype, verifier=verifier, batch=batch, honest=True)
    yield Row("the step before", folder="older")
    yield Row("two steps before", folder="oldest")
    yield Row("int8 weights", folder="int8")
    yield Row("weights rounded to bfloat16", folder="bfloat16")
    yield Row("temperature 0.9", parameters=replace(PLAIN, temperature=0.9))
    yield Row("temperature 0.8", parameters=replace(PLAIN, temperature=0.8))
    yield Row("greedy", parameters=replace(PLAIN, top_k=1))
    yield Row("fresh noise", fresh=True)
    yield Row("another base", folder="other")


def main() -> None:
    """Measures, prints, and writes the calibration."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        folders = {name: Path(home) / name for name in ("oldest", "older", "version", "int8", "bfloat16", "other")}
        warm_up(folders["oldest"], steps=WARM_UP)
        further(folders["oldest"], [folders["older"], folders["version"]], rate=RATE)
        for name in ("int8", "bfloat16"):
            changed(folders["version"], folders[name], name)
        warm_up(folders["other"], steps=max(1, WARM_UP // 4))
        policies = {dtype: load_policy(folders["version"], dtype=dtype, device=torch.device("cpu")) for dtype in Dtype}
        measured = [(row, measure(row, folders, policies[row.verifier])) for row in rows()]
        entries = calibrate(measured, folders["version"])
    show(measured, entries)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_bytes(merged(None, entries.values()).to_json())


def measure(row: Row, folders: dict[str, Path], policy: Policy) -> CalibrationFigures:
    """Generates and verifies the files of one row."""
    figures = CalibrationFigures()
    engine = open_engine(row.engine, dtype=row.dtype, device="cpu", max_batch=row.batch)
    engine.load(folders[row.folder], version=ZERO_DIGEST)
    for number in range(FILES):
        file = file_of(engine, row, requests_of(folders["version"], number))
        draws = Draws(seed=_seed(number), parameters=PLAIN)
        figures.add(file, gather(policy, file, dict.fromkeys(range(len(file.samples)), draws)))
    engine.close()
    return figures


def file_of(engine: Engine, row: Row, requests: list[SampleRequest]) -> RolloutFile:
    """Makes one file as the row says."""
    asked = [replace(one, seed=FRESH) if row.fresh else one for one in requests]
    return as_file(requests, engine.generate(asked, row.parameters), engine=row.engine, dtype=row.dtype)


def requests_of(folder: Path, number: int) -> list[SampleRequest]:
    """Makes requests with prompts that the warm-up did not contain."""
    environment, tokenizer = load_environment("letters"), FolderTokenizer(folder)
    requests = []
    for sample in range(GROUPS * EACH):
        index = 10_000_000 + number * GROUPS + sample // EACH
        tokens = tuple(tokenizer.encode(environment.prompt(index).text))
        requests.append(SampleRequest(sample=sample, prompt_tokens=tokens, seed=_seed(number)))
    return requests


def _seed(number: int) -> bytes:
    return number.to_bytes(32, "big")


def pair_of(row: Row) -> ArithmeticPair:
    """Returns the pair of prover and verifier of a calibration entry."""
    return ArithmeticPair.of(row.engine, row.dtype, verified_in=row.verifier)


def calibrate(measured: list[tuple[Row, CalibrationFigures]], folder: Path) -> dict[ArithmeticPair, CheckLimits]:
    """Makes an entry for each pair of engine and type from all its honest rows."""
    honest: defaultdict[ArithmeticPair, CalibrationFigures] = defaultdict(CalibrationFigures)
    for row, figures in measured:
        if row.honest:
            honest[pair_of(row)].extend(figures)
    model = model_names(read_model(folder), digest=ZERO_DIGEST)[1]
    return {pair: limits_around(figures, model=model, pair=pair) for pair, figures in honest.items()}


def show(measured: list[tuple[Row, CalibrationFigures]], entries: dict[ArithmeticPair, CheckLimits]) -> None:
    """Prints the table."""
    table = Table(title=f"{FILES} files of {GROUPS * EACH} answers each; warm-up of {WARM_UP} steps")
    columns = ("generated by", "verified in", "not the draw", "largest gap", "largest sum", "logprob, largest")
    for column in (*columns, "proofs, mean units", "worst", "rejected: replay", "proofs"):
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for row, figures in measured:
        rejected = figures.rejected(entries[pair_of(row)])
        share = figures.mismatches / figures.tokens
        table.add_row(row.name, row.verifier.value, f"{share:.2%}", *_rest(figures), *map(str, rejected))
    Console(width=170).print(table)


def _rest(figures: CalibrationFigures) -> tuple[str, ...]:
    return (
        f"{figures.largest_gap:.3g}",
        f"{figures.largest_sum:.3g}",
        f"{figures.largest_error:.2g}",
        f"{fmean(each.figures.distance_mean for each in figures.files):.3g}",
        f"{figures.worst_distance:.3g}",
    )


if __name__ == "__main__":
    end_in_order()
    main()
