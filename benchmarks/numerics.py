"""Measures verification within a numerics class by vLLM on this machine's CPU; `python -m benchmarks.numerics`.

1. `differences`: vLLM generates in batches of 1 to 64, for two sizes of models, before and after ten weight
   updates in place; another process prefills the answers in other batches. Every differing bit is counted.
2. `close`: attacks that bfloat16's calibrated limits let through (`python -m benchmarks.validator --only close`),
   judged by vLLM of the same class, and honest files.
3. `rates`: CPU seconds and seconds of a validator for one file, by vLLM and by torch, at 1, 16 and 64 answers.
4. `served`: CPU seconds of a validator for a served file of 64 requests of one answer each, request by request and
   all rows together, by vLLM and by torch.

Needs `.tools/vllm` (`make tools`). `--dtype float32` measures the class of the other data type.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.attack_tries import DEVNET_RATE, behind, copy_base, node
from benchmarks.ending import end_in_order
from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.draws import NearTies, OtherParameters
from cli.devnet.attacks.weights import Earlier, OtherWeights, quantised, write_changed
from protocol.identifiers import ZERO_DIGEST, Digest
from rollouts.calibration.limits import RolloutCalibration
from rollouts.checks import Draws, RowEvidence, gather
from rollouts.engines.interface import Completion, SampleRequest
from rollouts.files.samples import RolloutFile
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.models.facts import ModelFacts, read_model
from rollouts.models.policy import load_policy
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import eligible_prompts, read_recipe, write_recipe
from rollouts.recompute.place import VllmPlace, classes_at
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sandbox import Sandboxes
from tests.kit.attack_comparison import Compared
from tests.kit.attack_harness import AttackHarness
from tests.kit.tiny_model import tiny_folder
from tests.kit.vllm_engine import PYTHON, EngineProcess
from validator.audit.draw import RowDraw
from validator.examination.channel import Order
from validator.examination.interface import Conclusion
from validator.examination.model_cache import ModelCache
from validator.examination.procedure import Procedure
from validator.examination.reading import LimitedReader
from validator.examination.settings import ExaminerSettings
from validator.examination.vllm_cache import VllmCache

SEED = bytes(range(32))
CPU = torch.device("cpu")
PROGRESS = 25
"""Files after which `close` prints its counts so far, so that a run ended early has a result."""
PLACE = VllmPlace(python=PYTHON, device="cpu")
SHAPES: Mapping[str, dict[str, Any]] = {
    "0.4 M": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "vocab_size": 64},
    "2 M": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "vocab_size": 8192},
}
CASES = ((1, 64, False), (7, 128, False), (64, 512, False), (4, 1800, False), (16, 64, True))
"""Answers at once, maximum tokens of an answer, and whether vLLM caches prefixes, of `differences`. Prefix caching is
off in the product."""
ATTACKS: Mapping[str, Callable[[], Trick]] = {
    "int8": lambda: OtherWeights("int8", quantised(8)),
    "one step at 2e-4 behind": lambda: Earlier(1),
    "two steps at 2e-4 behind": lambda: Earlier(2),
    "temperature 0.8": OtherParameters,
    "near-ties": NearTies,
}


_LEAST_ANSWERS = 16
"""Answers of a measurement of `rates`: CPU time is counted in steps of 10 ms, so small files are verified again."""
REQUESTS = 64
"""Requests of the file of `served`, each with one answer."""
TEMPERATURES = ((1.0,), (1.0, 0.9, 0.8, 0.7))
"""Temperatures of the requests of a file of `served`."""


class RemoteEngine:
    """An engine of the class in a process of its own."""

    name = EngineName.VLLM

    def __init__(self, process: EngineProcess, arithmetic: Arithmetic) -> None:
        self._process = process
        self.dtype = arithmetic.dtype
        self.arithmetics = (arithmetic,)
        self.version: Digest | None = None
        self.model: ModelFacts | None = None

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads a version."""
        self._process.load(folder, version=version)
        self.version, self.model = version, read_model(folder)

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        with_proofs: bool = True,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Yields the completions."""
        del should_stop
        yield from self._process.generate(requests, parameters, with_proofs=with_proofs).values()

    def close(self) -> None:
        """Does nothing: the process has an owner."""


def requests_of(
    vocabulary: int, answers: int, *, shortest: int = 3, longest: int = 60, draw: int = 0
) -> list[SampleRequest]:
    """Makes prompts of `shortest` to `longest` tokens, each for four answers; another `draw` has other prompts."""
    draws = np.random.default_rng(draw)
    sizes = draws.integers(shortest, longest, size=answers)
    prompts = [tuple(draws.integers(3, vocabulary, size=int(size)).tolist()) for size in sizes]
    return [SampleRequest(sample=at, prompt_tokens=prompts[at // 4], seed=SEED) for at in range(answers)]


def file_of(requests: Sequence[SampleRequest], drawn: Mapping[int, Completion], arithmetic: Arithmetic) -> RolloutFile:
    """Makes a file of completions."""
    rows = [unrewarded_sample(drawn[one.sample], prompt=one.prompt_tokens) for one in requests]
    return RolloutFile(unleased_header(arithmetic=arithmetic), tuple(rows))


def differing(file: RolloutFile, evidence: Mapping[int, RowEvidence]) -> Counter[str]:
    """Counts what differs between a file and its recomputation."""
    found: Counter[str] = Counter()
    for row, one in evidence.items():
        sample, gaps = file.samples[row], one.gaps
        found["tokens"] += len(sample.output_tokens)
        found["log-probabilities"] += int((sample.logprobs != one.logprobs).sum())
        found["draws"] += int(gaps.mismatches.sum()) if gaps is not None else len(sample.output_tokens)
        found["proofs"] += sum(proof.malformed is not None or proof.distance_total > 0 for proof in one.proofs)
    return found


def differences(console: Console, own: Arithmetic, *, tokens: int, home: Path) -> None:
    """Prints the table of differences."""
    table = Table(title=f"{own}: generated and prefilled in two processes")
    for column in (
        "model",
        "batch",
        "answers of",
        "prefix caching",
        "weights",
        "tokens",
        "draws",
        "log-probabilities",
        "proofs differ",
    ):
        table.add_column(column)
    for name, shape in SHAPES.items():
        folders = [
            tiny_folder(
                home / f"{name}-{seed}",
                kind="llama",
                seed=seed,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=2048,
                initializer_range=0.1,
                **shape,
            )
            for seed in range(2)
        ]
        with EngineProcess(home / "log", device_class=own.device) as engine, VllmProcess(PLACE, own) as verifier:
            for batch, length, caching in CASES:
                engine.open(dtype=own.dtype, max_batch=batch, prefix_caching=caching)
                engine.load(folders[0], version=ZERO_DIGEST)
                verifier.load(folders[0], version=ZERO_DIGEST)
                answers = max(batch, tokens // (6 * length))
                for weights in ("first", "after ten updates in place"):
                    if weights != "first":
                        for number in range(10):
                            for loaded in (engine, verifier):
                                loaded.load(folders[(number + 1) % 2], version=ZERO_DIGEST)
                    # vLLM caches whole blocks of positions, so longer prompts have more that is found in the cache.
                    spread = {"shortest": 140, "longest": 700} if caching else {}
                    requests = requests_of(shape["vocab_size"], answers, **spread)
                    parameters = SamplingParameters(max_new_tokens=length)
                    file = file_of(requests, engine.generate(requests, parameters), own)
                    order = sorted(range(len(requests)), reverse=True)
                    draws = Draws(seed=SEED, parameters=parameters)
                    found = differing(file, verifier.compare(file, dict.fromkeys(order, draws)))
                    table.add_row(
                        name, str(batch), str(length), "on" if caching else "off", weights,
                        *(f"{found[each]:,}" for each in ("tokens", "draws", "log-probabilities", "proofs")),
                    )  # fmt: skip
    console.print(table)


def close(console: Console, own: Arithmetic, *, tries: int, honest: int, home: Path) -> None:
    """Prints the table of close attacks."""
    folder = home / "version"
    copy_base(folder)
    recipe = read_recipe(folder)
    eligible = list(eligible_prompts(folder, recipe))
    write_recipe(folder, recipe.model_copy(update={"arithmetic": (str(own),)}), eligible=eligible)
    one, two = home / "one", home / "two"
    write_changed(folder, one, lambda tensors: behind(tensors, rate=DEVNET_RATE, seed=1))
    write_changed(one, two, lambda tensors: behind(tensors, rate=DEVNET_RATE, seed=2))
    told = ExaminerSettings(home=home)
    cache = VllmCache(PLACE, budget=1 << 30)
    procedure = Procedure(
        reader=LimitedReader(Sandboxes(), most=told.most),
        models=ModelCache(CPU, budget=1 << 30),
        vllm=cache,
        calibration=RolloutCalibration.shipped(),
        dtype=None,
        margin=told.margin,
        scoring=told.scoring_budget,
    )
    table = Table(title=f"{own}, judged by vLLM of the same class; files of 4 groups, all rows recomputed")
    for column in ("generated by", "files", "accepted", "rejected", "slashed", "not judged"):
        table.add_column(column)
    with EngineProcess(home / "log", device_class=own.device) as process:
        process.open(dtype=own.dtype, max_batch=64)
        harness = AttackHarness(
            RemoteEngine(process, own), folder, history=(two, one), home=home / "files", node=node()
        )
        for name, make in {**ATTACKS, "honest": Trick}.items():
            outcomes: Counter[str] = Counter()
            wanted, index = (honest if name == "honest" else tries), 0
            trick: Trick = make() if name == "honest" else Compared(make())
            while outcomes.total() < wanted and index < 20 * wanted:
                work = harness.hand_in(trick, harness.grant(index, groups=4))
                index += 1
                if work is None or (isinstance(trick, Compared) and not trick.forged(work)):
                    continue
                order = Order(facts=work.facts, file=work.path, folder=folder, draw=RowDraw(seed=None, share=1.0))
                found = procedure.examine(order, is_copy=lambda _: False)
                outcomes[found.outcome.name if isinstance(found, Conclusion) else "NOT_JUDGED"] += 1
                work.path.unlink()
                if outcomes.total() % PROGRESS == 0:
                    console.log(f"{name}: {outcomes.total()} of {wanted} files: {dict(outcomes)}")
            counts = [str(outcomes[each]) for each in ("ACCEPTED", "REJECTED", "FORGED", "NOT_JUDGED")]
            table.add_row(name, str(outcomes.total()), *counts)
    cache.close()
    console.print(table)


def rates(
    console: Console, own: Arithmetic, *, model: Path | None, length: int, prompts: tuple[int, int], rounds: int,
    home: Path,
) -> None:  # fmt: skip
    """Prints CPU seconds and seconds of recomputing one file, medians of several files in turns."""
    folder = model or tiny_folder(
        home / "rates", kind="llama", num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2048,
        **SHAPES["2 M"],
    )  # fmt: skip
    torch.set_num_threads(1)
    policy = load_policy(folder, dtype=own.dtype, device=CPU)
    vocabulary = read_model(folder).vocabulary
    shortest, longest = prompts
    table = Table(
        title=f"{own}, {folder.name}: per file, proofs and replay included, median of {rounds}; "
        f"prompts of {shortest} to {longest} tokens, answers of {length}"
    )
    for column in ("answers", "CPU s: vLLM", "torch", "ratio", "s: vLLM", "torch", "ratio", "vLLM's memory, MB"):
        table.add_column(column)
    with (
        EngineProcess(home / "log", device_class=own.device) as engine,
        VllmProcess(PLACE, own) as verifier,
    ):
        engine.open(dtype=own.dtype, max_batch=64)
        engine.load(folder, version=ZERO_DIGEST)
        verifier.load(folder, version=ZERO_DIGEST)
        watched, mine = psutil.Process(verifier.pid), psutil.Process()
        for answers in (1, 16, 64):
            parameters = SamplingParameters(max_new_tokens=length)
            rows = dict.fromkeys(range(answers), Draws(seed=SEED, parameters=parameters))
            found: list[tuple[float, ...]] = []
            for draw in range(rounds + 1):
                requests = requests_of(vocabulary, answers, shortest=shortest, longest=longest, draw=draw)
                file = file_of(requests, engine.generate(requests, parameters), own)
                repeats = max(1, _LEAST_ANSWERS // answers)
                vllms = _measured(watched, partial(verifier.compare, file, rows), repeats)
                torchs = _measured(mine, partial(gather, policy, file, rows), repeats)
                found.append((vllms[0], torchs[0], vllms[0] / torchs[0], vllms[1], torchs[1], vllms[1] / torchs[1]))
            medians = np.median(found[1:], axis=0)  # the first file warms both up
            memory = watched.memory_info().rss / 1e6
            table.add_row(str(answers), *(f"{one:.3g}" for one in medians), f"{memory:,.0f}")
    console.print(table)


def _measured(watched: psutil.Process, verify: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Returns the CPU seconds of a process and the seconds that a call takes."""
    before, began = watched.cpu_times(), time.perf_counter()
    for _ in range(repeats):
        verify()
    after, ended = watched.cpu_times(), time.perf_counter()
    return (after.user + after.system - before.user - before.system) / repeats, (ended - began) / repeats


def served(console: Console, own: Arithmetic, *, length: int, home: Path) -> None:
    """Prints CPU seconds of recomputing a served file, whose rows have different seeds and parameters."""
    folder = tiny_folder(
        home / "served", kind="llama", num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2048,
        **SHAPES["2 M"],
    )  # fmt: skip
    torch.set_num_threads(1)
    policy = load_policy(folder, dtype=own.dtype, device=CPU)
    table = Table(
        title=f"{own}, 2 M: CPU seconds per served file of {REQUESTS} requests of one answer, {length} tokens each; "
        "proofs and replay included"
    )
    for column in ("temperatures", "vLLM, by request", "together", "torch, by request", "together"):
        table.add_column(column)
    with VllmProcess(PLACE, own, batch=REQUESTS) as engine, VllmProcess(PLACE, own) as verifier:
        engine.load(folder, version=ZERO_DIGEST)
        verifier.load(folder, version=ZERO_DIGEST)
        watched = psutil.Process(verifier.pid)

        def vllm_seconds() -> float:
            times = watched.cpu_times()
            return times.user + times.system

        verify: tuple[tuple[Callable[[], float], Callable[..., Mapping[int, RowEvidence]]], ...] = (
            (vllm_seconds, verifier.compare),
            (time.process_time, lambda file, rows: gather(policy, file, rows)),
        )
        numbers = iter(range(100))
        for temperatures in TEMPERATURES:
            cells = []
            for seconds, compare in verify:
                warm_up, single, whole = (
                    _served_file(engine, own, temperatures, length=length, draw=next(numbers)) for _ in range(3)
                )
                compare(*warm_up)
                began = seconds()
                for row, draws in single[1].items():
                    compare(single[0], {row: draws})
                middle = seconds()
                found = compare(*whole)
                cells += [middle - began, seconds() - middle]
                off = [float(one.gaps.mismatches.mean()) for one in found.values() if one.gaps is not None]
                assert len(off) == REQUESTS
                assert np.mean(off) <= (0 if compare == verifier.compare else 0.1)
            table.add_row(", ".join(map(str, temperatures)), *(f"{one:.2f}" for one in cells))
    console.print(table)


def _served_file(
    engine: VllmProcess, own: Arithmetic, temperatures: Sequence[float], *, length: int, draw: int
) -> tuple[RolloutFile, dict[int, Draws]]:
    """Returns a file of `REQUESTS` rows, each with a seed of its own and one of the temperatures."""
    sizes, tokens = np.random.default_rng(0).integers(3, 60, size=REQUESTS), np.random.default_rng(draw)
    requests = [
        SampleRequest(
            sample=at,
            prompt_tokens=tuple(tokens.integers(3, 8192, size=int(size)).tolist()),
            seed=bytes([at, draw]) * 16,
        )
        for at, size in enumerate(sizes)
    ]
    drawn: dict[int, Completion] = {}
    draws: dict[int, Draws] = {}
    for number, temperature in enumerate(temperatures):
        parameters = SamplingParameters(max_new_tokens=length, temperature=temperature)
        some = requests[number :: len(temperatures)]
        drawn |= engine.generate(some, parameters)
        draws |= {one.sample: Draws(seed=one.seed, parameters=parameters) for one in some}
    return file_of(requests, drawn, own), dict(sorted(draws.items()))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["differences", "close", "rates", "served"])
    parser.add_argument("--dtype", type=Dtype, default=Dtype.BFLOAT16, choices=list(Dtype))
    parser.add_argument("--tokens", type=int, default=24_000, help="least tokens of `differences`, per model")
    parser.add_argument("--tries", type=int, default=25, help="forged files of each attack")
    parser.add_argument("--honest", type=int, default=3000, help="honest files of `close`")
    parser.add_argument("--model", type=Path, help="model of `rates`; default: one of 2 M parameters")
    parser.add_argument("--length", type=int, default=64, help="tokens of each answer of `rates` and `served`")
    parser.add_argument(
        "--prompts", type=int, nargs=2, default=(3, 60), metavar=("SHORTEST", "LONGEST"), help="prompts of `rates`"
    )
    parser.add_argument("--rounds", type=int, default=5, help="files of each size of `rates`")
    told = parser.parse_args()
    console = Console(width=150)
    own = next(one for one in classes_at(PLACE) if one.dtype is told.dtype)
    home = Path(tempfile.mkdtemp())
    try:
        (home / "files").mkdir()
        if told.only in {None, "differences"}:
            differences(console, own, tokens=told.tokens, home=home)
        if told.only in {None, "close"}:
            close(console, own, tries=told.tries, honest=told.honest, home=home)
        if told.only in {None, "rates"}:
            rates(
                console, own, model=told.model, length=told.length, prompts=tuple(told.prompts), rounds=told.rounds,
                home=home,
            )  # fmt: skip
        if told.only in {None, "served"}:
            served(console, own, length=told.length, home=home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    end_in_order()
    main()
