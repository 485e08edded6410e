"""What replay, proofs and log-probabilities show for honest work and for cheats; `python -m benchmarks.replay [FILE]`.

A small model is warmed up on the `letters` task, answers are generated in every way of the table, and a prefill with
the torch engine's arithmetic judges them: the figures to which limits are compared, and how many files were rejected.
Honest rows become the entries of a calibration, written to FILE if one is named. Where vLLM can be imported
(`.tools/vllm/bin/python -m benchmarks.replay`) it generates too. `MUSTER_FILES` sets the number of files a row (64
answers each), `MUSTER_WARM_UP` the steps of training.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.letters_model import changed, further, warm_up
from benchmarks.rollout_files import as_file
from protocol.identifiers import ZERO_DIGEST
from rollouts.calibration import (
    Limits,
    LogprobLimits,
    RolloutCalibration,
    SamplingLimits,
    float32_limits,
    model_names,
)
from rollouts.checks import RowEvidence, gather
from rollouts.engines.interface import Dtype, Engine, EngineName, SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.environments import load_environment
from rollouts.model import read_model
from rollouts.policy import Policy, load_policy
from rollouts.samples import RolloutFile
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import Replay, summarise
from rollouts.tokenizer import FolderTokenizer
from rollouts.toploc import TOPLOC, Aggregate, Arithmetic, Outcome, Thresholds, aggregate, judge

FILES = int(os.environ.get("MUSTER_FILES", "32"))
WARM_UP = int(os.environ.get("MUSTER_WARM_UP", "600"))
GROUPS, EACH = 4, 16
HEADROOM = 2.0
RATE = 2e-4
PLAIN = SamplingParameters(max_new_tokens=12)
FRESH = b"\x99" * 32
SINGLE, HALF = Dtype.FLOAT32, Dtype.BFLOAT16


@dataclass(frozen=True)
class Row:
    """One way to generate, and what it is verified in."""

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
    """The table."""
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


@dataclass
class Figures:
    """What the files of a row show."""

    replays: list[Replay]
    files: list[Aggregate]
    samples: list[Aggregate]
    errors: list[np.ndarray[tuple[int], np.dtype[np.float64]]]

    def add(self, file: RolloutFile, evidence: dict[int, RowEvidence]) -> None:
        """Takes a file's in."""
        self.replays.append(summarise(one.gaps for one in evidence.values() if one.gaps is not None))
        self.files.append(aggregate(result for one in evidence.values() for result in one.proofs))
        self.samples += [aggregate(one.proofs) for one in evidence.values()]
        self.errors.append(
            np.concatenate(
                [np.abs(file.samples[row].logprobs.astype(np.float64) - one.logprobs) for row, one in evidence.items()]
            )
        )

    def rejected(self, limits: Limits) -> tuple[int, int]:
        """How many files replay, and proofs, reject."""
        sampling = limits.sampling
        by_replay = sum(
            one.mismatches > sampling.mismatches(one.tokens)
            or one.largest > sampling.largest
            or one.largest_sum > sampling.largest_sum
            for one in self.replays
        )
        by_proofs = sum(judge(one, limits.file).outcome is not Outcome.PASSED for one in self.files)
        return by_replay, by_proofs


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
        Path(sys.argv[1]).write_bytes(RolloutCalibration(entries=tuple(entries.values())).to_json())


def measure(row: Row, folders: dict[str, Path], policy: Policy) -> Figures:
    """Generates and verifies the files of one row."""
    figures = Figures([], [], [], [])
    engine = open_engine(row.engine, dtype=row.dtype, device="cpu", max_batch=row.batch)
    engine.load(folders[row.folder], version=ZERO_DIGEST)
    for number in range(FILES):
        file = file_of(engine, row, requests_of(folders["version"], number))
        seed = _seed(number)
        figures.add(file, gather(policy, file, range(len(file.samples)), seed=seed, parameters=PLAIN))
    engine.close()
    return figures


def file_of(engine: Engine, row: Row, requests: list[SampleRequest]) -> RolloutFile:
    """One file, made in the way of the row."""
    asked = [replace(one, seed=FRESH) if row.fresh else one for one in requests]
    return as_file(requests, engine.generate(asked, row.parameters), engine=row.engine, dtype=row.dtype)


def requests_of(folder: Path, number: int) -> list[SampleRequest]:
    """Prompts that the warm-up never saw."""
    environment, tokenizer = load_environment("letters"), FolderTokenizer(folder)
    requests = []
    for sample in range(GROUPS * EACH):
        index = 10_000_000 + number * GROUPS + sample // EACH
        tokens = tuple(tokenizer.encode(environment.prompt(index).text))
        requests.append(SampleRequest(sample=sample, prompt_tokens=tokens, seed=_seed(number)))
    return requests


def _seed(number: int) -> bytes:
    return number.to_bytes(32, "big")


Key = tuple[Arithmetic, Arithmetic]


def key_of(row: Row) -> Key:
    """What a calibration's entry is for."""
    return Arithmetic(engine=row.engine, dtype=row.dtype), Arithmetic(engine=EngineName.TORCH, dtype=row.verifier)


def calibrate(measured: list[tuple[Row, Figures]], folder: Path) -> dict[Key, Limits]:
    """An entry for each pair of engine and type, from all honest rows of it."""
    entries: dict[Key, Limits] = {}
    model = model_names(read_model(folder), digest=ZERO_DIGEST)[1]
    floor = float32_limits((model,))
    for key in {key_of(row) for row, _ in measured if row.honest}:
        honest = [figures for row, figures in measured if row.honest and key_of(row) == key]
        files = [one for figures in honest for one in figures.files]
        samples = [one for figures in honest for one in figures.samples]
        errors = [one for figures in honest for one in figures.errors]
        entries[key] = Limits(
            model=model,
            codec=TOPLOC.name,
            prover=key[0],
            verifier=key[1],
            sample=_at_least(Thresholds.around(samples, headroom=HEADROOM), floor.sample),
            file=_at_least(Thresholds.around(files, headroom=HEADROOM), floor.file),
            samples=len(samples),
            files=len(files),
            sampling=SamplingLimits.around([one for figures in honest for one in figures.replays], headroom=HEADROOM),
            logprobs=LogprobLimits(
                mean=max(floor.logprobs.mean, HEADROOM * max(float(one.mean()) for one in errors)),
                largest=max(floor.logprobs.largest, HEADROOM * max(float(one.max()) for one in errors)),
            ),
            headroom=HEADROOM,
        )
    return dict(sorted(entries.items(), key=lambda entry: str(entry[0])))


def _at_least(measured: Thresholds, floor: Thresholds) -> Thresholds:
    """Figures of few files may be 0 by luck; what float32 is allowed is never too much."""
    return Thresholds(**{name: max(value, getattr(floor, name)) for name, value in measured})


def show(measured: list[tuple[Row, Figures]], entries: dict[Key, Limits]) -> None:
    """Prints the table."""
    table = Table(title=f"{FILES} files of {GROUPS * EACH} answers each; warm-up of {WARM_UP} steps")
    columns = ("generated by", "verified in", "not the draw", "largest gap", "largest sum", "logprob, largest")
    for column in (*columns, "proofs, mean units", "worst", "rejected: replay", "proofs"):
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for row, figures in measured:
        tokens = sum(one.tokens for one in figures.replays)
        rejected = figures.rejected(entries[key_of(row)])
        share = sum(one.mismatches for one in figures.replays) / tokens
        table.add_row(row.name, row.verifier.value, f"{share:.2%}", *_rest(figures), *map(str, rejected))
    Console(width=170).print(table)


def _rest(figures: Figures) -> tuple[str, ...]:
    return (
        f"{max(one.largest for one in figures.replays):.3g}",
        f"{max(one.largest_sum for one in figures.replays):.3g}",
        f"{max(float(one.max()) for one in figures.errors):.2g}",
        f"{np.mean([one.figures.distance_mean for one in figures.files]):.3g}",
        f"{max(one.figures.distance_worst for one in figures.files):.3g}",
    )


if __name__ == "__main__":
    main()
