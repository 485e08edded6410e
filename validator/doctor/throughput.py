"""Measures how many rollout files this machine examines, with honest files that it generates by a version's recipe."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from protocol.errors import InvalidInput, Unavailable
from protocol.identifiers import Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.runtime.clock import Clock
from protocol.runtime.threads import run_in_thread
from protocol.wire.leases import SignedLease
from protocol.wire.slots import SlotGrant
from rollouts.checks import CheckedVersion, open_version
from rollouts.engines.opening import open_engine
from rollouts.files.schema import write_rollouts
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import Recipe
from rollouts.task.generator import SlotGenerator
from rollouts.task.policies import HeldPolicy
from validator.audit.draw import RowDraw
from validator.domain.submissions import WorkFacts
from validator.examination.channel import Order
from validator.examination.child import ExaminerProcess
from validator.examination.interface import Conclusion
from validator.examination.settings import ExaminerSettings

LOWEST_SHARE = 0.1
"""Share of rows that is recomputed of a node with a good record, if the pool's audit floor is 10 %."""
_POOL = 1
_BLOCK = 7
_FAR = 1 << 36
"""Unix time at which the leases end; far in the future."""
_MOST_BATCH = 64

Progress = Callable[[str], None]
"""Called with a line of text about the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Parameters of a measurement.

    Args:
        model: Folder of a version with its recipe, which must pay for torch.
        examiner: Settings of the examiner processes.
        groups: Number of groups of each file.
        files: Number of files to generate.
        rounds: Number of times that each worker examines as many files as are generated.
    """

    model: Path
    examiner: ExaminerSettings
    groups: int
    files: int
    rounds: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedAt:
    """Rate of examinations at one share of recomputed rows.

    Args:
        share: Share of rows that is recomputed.
        files_per_minute: Files of all workers together.
        tokens_per_s: Generated tokens in these files.
        nodes: Number of nodes like this machine that generate as many tokens, with as many threads as one worker.
        cpu_s_per_file: CPU seconds of a worker and its sandbox for one file; other load changes them little.
    """

    share: float
    files_per_minute: float
    tokens_per_s: float
    nodes: float
    cpu_s_per_file: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Result of a measurement.

    Args:
        parameters: Number of the model's parameters.
        arithmetic: Engine and type of the files.
        workers: Number of examiner processes.
        threads: Torch threads of each process.
        rows: Rows of a file.
        tokens: Mean number of generated tokens of a file.
        generated_per_s: Tokens per second that one process with `threads` threads generates here.
        examined: Rates, for all rows and for the lowest share.
    """

    parameters: int
    arithmetic: str
    workers: int
    threads: int
    rows: int
    tokens: float
    generated_per_s: float
    examined: tuple[ExaminedAt, ...]


@dataclass(frozen=True, slots=True)
class _Made:
    path: Path
    facts: WorkFacts
    tokens: int


async def measure_throughput(wanted: Sizing, *, clock: Clock, progress: Progress) -> Throughput:
    """Generates honest files and examines them in as many processes as the validator would use.

    Args:
        wanted: Parameters of the measurement.
        clock: Clock of the generator.
        progress: Called with a line of text before each part.

    Raises:
        InvalidInput: The recipe pays for no torch, or its slots are served by a gateway.
        Unavailable: An honest file was not accepted, so this machine must not judge.
        MusterError: The version can't be used, or memory runs out.
    """
    version = await run_in_thread(open_version, wanted.model)
    dtype = _dtype(version.recipe)
    with tempfile.TemporaryDirectory(prefix="muster-doctor-") as folder:
        progress(f"generating {wanted.files} files of {wanted.groups} groups")
        made, generated_s = await run_in_thread(_generate, wanted, version, dtype, Path(folder), clock)
        tokens = sum(one.tokens for one in made)
        processes = [ExaminerProcess(replace(wanted.examiner, processes=1)) for _ in range(wanted.examiner.processes)]
        try:
            progress("loading the policy into each worker")
            await asyncio.gather(*(_examine(process, made[0], version, wanted, share=1.0) for process in processes))
            examined = []
            for share in (1.0, LOWEST_SHARE):
                progress(f"examining, {share:.0%} of the rows are recomputed")
                before = sum(map(_cpu_s, processes))
                seconds = await _examine_all(processes, made, version, wanted, share=share)
                used = sum(map(_cpu_s, processes)) - before
                rate = len(processes) * wanted.rounds / seconds
                examined.append(
                    ExaminedAt(
                        share=share,
                        files_per_minute=60 * rate * len(made),
                        tokens_per_s=rate * tokens,
                        nodes=rate * generated_s,
                        cpu_s_per_file=used / (len(processes) * wanted.rounds * len(made)),
                    )
                )
        finally:
            await asyncio.gather(*(process.end() for process in processes))
    return Throughput(
        parameters=version.model.parameters,
        arithmetic=f"torch/{dtype.value}",
        workers=wanted.examiner.processes,
        threads=wanted.examiner.threads,
        rows=wanted.groups * version.recipe.group_size,
        tokens=tokens / len(made),
        generated_per_s=tokens / generated_s,
        examined=tuple(examined),
    )


def _dtype(recipe: Recipe) -> Dtype:
    """Returns the first type for which the recipe pays torch."""
    if recipe.gateway is not None:
        raise InvalidInput(
            "the recipe's slots are served by a gateway, whose clients choose the prompts",
            hint="measure with a version of the same model whose recipe has an environment only",
        )
    arithmetics = [Arithmetic.parse(name) for name in recipe.taken]
    types = [one.dtype for one in arithmetics if one.engine is EngineName.TORCH and not one.is_class]
    if not types:
        raise InvalidInput(
            f"the recipe pays for {', '.join(recipe.taken)}, and the measurement generates with torch",
            hint="copy the version's folder and add torch/float32 or torch/bfloat16 to `arithmetic` in its recipe.json",
        )
    return types[0]


def _generate(
    wanted: Sizing, version: CheckedVersion, dtype: Dtype, folder: Path, clock: Clock
) -> tuple[list[_Made], float]:
    """Generates files as a node does, under leases of a pool that does not exist; returns them and the seconds."""
    import torch  # noqa: PLC0415 - the checks of the doctor do without it

    torch.set_num_threads(wanted.examiner.threads)
    made: list[_Made] = []
    seconds, orchestrator = 0.0, Key.generate()
    domain = SigningDomain(1, orchestrator.address)
    batch = min(_MOST_BATCH, wanted.groups * version.recipe.group_size)
    engine = open_engine(EngineName.TORCH, dtype=dtype, device=wanted.examiner.device, max_batch=batch)
    try:
        engine.load(version.folder, version=version.digest)
        with ThreadPoolExecutor(max_workers=1) as scorer:
            policy = HeldPolicy(version.digest, version.folder, ())
            generator = SlotGenerator(engine, policy, scorer=scorer, clock=clock)
            first = _grant(version, 0, groups=1, key=orchestrator, domain=domain)
            generator.produce(first, should_stop=lambda: False)  # pays for loading code and kernels
            for number in range(1, wanted.files + 1):
                grant = _grant(version, number, groups=wanted.groups, key=orchestrator, domain=domain)
                began = time.perf_counter()
                file = generator.produce(grant, should_stop=lambda: False).file
                seconds += time.perf_counter() - began
                path = folder / f"{number}.parquet"
                write_rollouts(path, file)
                sha256 = digest(hashlib.sha256(path.read_bytes()).digest())
                made.append(_Made(path, WorkFacts.granted(grant, sha256=sha256, units=file.units), file.units))
    finally:
        engine.close()
    return made, seconds


def _grant(version: CheckedVersion, index: int, *, groups: int, key: Key, domain: SigningDomain) -> SlotGrant:
    lease = Lease(
        pool_id=_POOL,
        run=run_id("doctor"),
        step=0,
        index=index,
        node=key.address,
        version=1,
        digest=version.digest,
        beacon_block=_BLOCK,
        salt=_hash(f"salt {index}"),
        groups=groups,
        max_units=groups * version.recipe.units_per_group,
        expiry=_FAR,
    )
    signed = SignedLease.of(lease, domain=domain, signature=lease.sign(key, domain))
    return SlotGrant(lease=signed, beacon=_hash(f"beacon {index}"))


async def _examine_all(
    processes: Sequence[ExaminerProcess],
    made: Sequence[_Made],
    version: CheckedVersion,
    wanted: Sizing,
    *,
    share: float,
) -> float:
    """Returns the seconds in which each process examines all files, `rounds` times, beside the others."""

    async def work(process: ExaminerProcess, first: int) -> None:
        for number in range(wanted.rounds * len(made)):
            await _examine(process, made[(first + number) % len(made)], version, wanted, share=share)

    began = time.perf_counter()
    await asyncio.gather(*(work(process, first) for first, process in enumerate(processes)))
    return time.perf_counter() - began


async def _examine(
    process: ExaminerProcess, one: _Made, version: CheckedVersion, wanted: Sizing, *, share: float
) -> None:
    draw = RowDraw(seed=hashlib.sha256(b"doctor").digest(), share=share)
    order = Order(facts=one.facts, file=one.path, folder=version.folder.absolute(), draw=draw)
    found = await process.examine(order, is_copy=_never, within=wanted.examiner.deadline)
    if not isinstance(found, Conclusion):
        raise Unavailable(f"an honest file was not judged: {found.why}", hint=found.hint, code=found.code)
    if found.outcome.name != "ACCEPTED":
        raise Unavailable(
            f"this machine does not accept an honest file of its own: {found.words}",
            hint="it must not judge: check its memory and libraries, and calibrate (`muster validator calibrate`)",
            retryable=False,
        )


def _cpu_s(process: ExaminerProcess) -> float:
    """Returns the CPU seconds that a running worker and its sandboxes, also ended ones, have used."""
    if process.pid is None:
        return 0.0
    worker = psutil.Process(process.pid)
    total = 0.0
    for one in (worker, *worker.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(one.cpu_times()[:4])  # user and system, of the process and of its ended children
    return total


async def _never(_fingerprint: Digest) -> bool:
    return False


def _hash(text: str) -> Digest:
    return digest(hashlib.sha256(text.encode()).digest())
