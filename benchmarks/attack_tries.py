"""Judges attacks and honest files in large numbers with the examiner's procedure, in one process per core.

Each process has one version with its history, an engine for each type and batch size, and an examiner. A `Batch` names
the work of a process; the result is a count of verdicts.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context
from pathlib import Path

import torch

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.draws import OtherParameters
from cli.devnet.attacks.edits import Relabelled
from cli.devnet.attacks.encodings import Bomb, ManyRows
from cli.devnet.attacks.registry import ATTACKS
from cli.devnet.attacks.weights import Earlier, OtherWeights, Tensors, quantised, write_changed
from protocol.identifiers import Address, Digest, address
from protocol.verdicts import Outcome
from protocol.wire.slots import SlotGrant
from rollouts.calibration.limits import RolloutCalibration
from rollouts.engines.opening import open_engine
from rollouts.files.samples import RolloutFile, SlotHeader
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import PAIRS, eligible_prompts, read_recipe, write_recipe
from rollouts.recompute.place import VllmPlace
from rollouts.sandbox import Sandboxes
from tests.kit.attack_comparison import Compared
from tests.kit.attack_harness import AttackHarness, HandedIn
from trainer.presets import devnet_base
from validator.audit.draw import RowDraw
from validator.examination.channel import Order
from validator.examination.interface import Conclusion, NotJudged
from validator.examination.model_cache import ModelCache
from validator.examination.procedure import Procedure
from validator.examination.reading import LimitedReader
from validator.examination.settings import ExaminerSettings
from validator.examination.vllm_cache import VllmCache

ACCEPTED, REJECTED, FORGED, NOT_JUDGED = "accepted", "rejected", "forged", "not judged"

DEVNET_RATE = 2e-4
SMALL_RATE = 1e-6


class Once(Trick):
    """Caches the bytes of a trick's first file, because making them takes longer than all other work.

    Args:
        trick: The trick that makes the file.
    """

    def __init__(self, trick: Trick) -> None:
        self._trick = trick
        self._bytes = b""

    def write(self, path: Path, file: RolloutFile) -> None:
        """Returns the bytes of the first file."""
        if not self._bytes:
            self._trick.write(path, file)
            self._bytes = path.read_bytes()
        path.write_bytes(self._bytes)


def _as_of_vllm(header: SlotHeader) -> SlotHeader:
    """Declares the engine that has the widest limits, in the same data type."""
    return replace(header, arithmetic=Arithmetic(engine=EngineName.VLLM, dtype=header.dtype))


QUICKER: dict[str, Callable[[], Trick]] = {
    "bomb": lambda: Once(Bomb(1 << 24)),
    "ten-million-rows": lambda: Once(ManyRows()),
}
SLOTS_FOR_A_TRY = 100
"""The most slots tried per requested forgery; a slot whose forged file equals the honest one is skipped."""

CLOSE: dict[str, tuple[Callable[[], Trick], Dtype]] = {
    "int8, in bfloat16": (lambda: OtherWeights("int8", quantised(8)), Dtype.BFLOAT16),
    "one step at 2e-4 behind, in bfloat16": (lambda: Earlier(1), Dtype.BFLOAT16),
    "one step at 1e-6 behind, in bfloat16": (lambda: Earlier(3), Dtype.BFLOAT16),
    "one step at 1e-6 behind, in float32": (lambda: Earlier(3), Dtype.FLOAT32),
    "temperature 0.8, in bfloat16": (OtherParameters, Dtype.BFLOAT16),
    "int8, in bfloat16, said to be vLLM's": (
        lambda: Relabelled(_as_of_vllm, of=OtherWeights("int8", quantised(8))),
        Dtype.BFLOAT16,
    ),
    "two steps at 2e-4 behind, in bfloat16, said to be vLLM's": (
        lambda: Relabelled(_as_of_vllm, of=Earlier(2)),
        Dtype.BFLOAT16,
    ),
    "temperature 0.8, in bfloat16, said to be vLLM's": (
        lambda: Relabelled(_as_of_vllm, of=OtherParameters()),
        Dtype.BFLOAT16,
    ),
}
"""Attacks that are hard or impossible to distinguish from honest work; see `benchmarks.validator`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A number of tries of one attack or of honest work.

    Args:
        name: An attack, one of `CLOSE`, or empty for honest work.
        tries: The number of tries.
        first: The index of the first slot.
        dtype: The type that the node computes in.
        max_batch: The number of answers that its engine draws at a time.
        groups: The number of groups in each slot.
        engine: The node's engine; files of an engine other than torch are made beforehand (`files`).
        files: A list of existing files, as `benchmarks.honest_files` writes it, to be judged.
    """

    name: str
    tries: int
    first: int
    dtype: Dtype = Dtype.FLOAT32
    max_batch: int = 64
    groups: int = 1
    engine: EngineName = EngineName.TORCH
    files: Path | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Returns the key under which results are counted together."""
        return self.name, f"{self.engine.value}, {self.dtype.value}, batch {self.max_batch}"


@dataclass(slots=True)
class Tally:
    """Counts of the verdicts on a batch."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    equal: int = 0
    """Files of an attack that equal the honest ones of their slots; the other counts exclude them."""
    equal_accepted: int = 0
    """How many of the equal files were accepted."""
    words: list[str] = field(default_factory=list)
    """Texts of the first verdicts that an honest node would not get."""

    def add(self, found: Conclusion | NotJudged) -> None:
        """Counts one verdict."""
        if isinstance(found, NotJudged):
            self.outcomes[NOT_JUDGED] += 1
            self.reasons[found.code] += 1
            return
        self.outcomes[found.outcome.name.lower()] += 1
        self.reasons[found.reason.name.lower().replace("_", "-")] += 1
        if found.outcome.name.lower() != ACCEPTED and len(self.words) < 3:
            self.words.append(found.words)

    def merge(self, other: Tally) -> None:
        """Adds another tally."""
        self.outcomes += other.outcomes
        self.reasons += other.reasons
        self.equal += other.equal
        self.equal_accepted += other.equal_accepted
        self.words = (self.words + other.words)[:3]

    @property
    def tries(self) -> int:
        """Returns the number of all tries."""
        return self.outcomes.total()


class Stand:
    """The version, engines and examiner of one process.

    Args:
        calibration: The limits; the shipped ones by default.
        home: An empty folder for this process.
    """

    def __init__(self, calibration: Path | None, home: Path) -> None:
        torch.set_num_threads(1)
        self.home = home
        self.version = self.home / "version"
        copy_base(self.version)
        self._history = history_of(self.version, self.home)
        self._open: dict[tuple[Dtype, int], AttackHarness] = {}
        self.procedure = examiner(calibration)
        self._seen: set[Digest] = set()

    def workshop(self, dtype: Dtype, max_batch: int) -> AttackHarness:
        """Returns a node with this engine."""
        if (dtype, max_batch) not in self._open:
            engine = open_engine(EngineName.TORCH, dtype=dtype, device="cpu", max_batch=max_batch)
            self._open[dtype, max_batch] = AttackHarness(
                engine, self.version, history=self._history, home=self.home, node=node()
            )
        return self._open[dtype, max_batch]

    def judge(self, work: HandedIn, *, share: float = 1.0) -> Conclusion | NotJudged:
        """Examines a file and removes it."""
        draw = RowDraw(seed=None if share == 1.0 else hashlib.sha256(work.path.name.encode()).digest(), share=share)
        order = Order(facts=work.facts, file=work.path, folder=self.version, draw=draw)
        found = self.procedure.examine(order, is_copy=self._seen.__contains__)
        if isinstance(found, Conclusion) and found.fingerprint is not None:
            self._seen.add(found.fingerprint)
        work.path.unlink()
        return found

    def run(self, batch: Batch) -> Tally:
        """Makes and judges a number of files, or judges existing ones."""
        if batch.files is not None:
            tally = Tally()
            for made in read_list(batch.files)[batch.first : batch.first + batch.tries]:
                tally.add(self.judge(made))
            return tally
        workshop = self.workshop(batch.dtype, batch.max_batch)
        return self._honest(batch, workshop) if not batch.name else self._forgeries(batch, workshop)

    def _honest(self, batch: Batch, workshop: AttackHarness) -> Tally:
        tally = Tally()
        for index in range(batch.first, batch.first + batch.tries):
            work = workshop.hand_in(Trick(), workshop.grant(index, groups=batch.groups))
            if work is not None:
                tally.add(self.judge(work))
        return tally

    def _forgeries(self, batch: Batch, workshop: AttackHarness) -> Tally:
        """Makes the requested number of forgeries from as many slots as that takes."""
        tally, trick = Tally(), Compared(trick_of(batch.name))
        for index in range(batch.first, batch.first + SLOTS_FOR_A_TRY * batch.tries):
            if tally.tries == batch.tries:
                break
            work = workshop.hand_in(trick, workshop.grant(index, groups=batch.groups))
            if work is None:
                continue
            forged = trick.forged(work)
            found = self.judge(work)
            if forged:
                tally.add(found)
            else:
                tally.equal += 1
                tally.equal_accepted += isinstance(found, Conclusion) and found.outcome is Outcome.ACCEPTED
        return tally


def write_list(path: Path, works: list[HandedIn]) -> None:
    """Writes one line of JSON for each file."""
    lines = [{"path": str(one.path), "units": one.units, "grant": one.grant.model_dump(mode="json")} for one in works]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_list(path: Path) -> list[HandedIn]:
    """Reads the files listed by `write_list`."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        HandedIn(path=Path(line["path"]), units=line["units"], grant=SlotGrant.model_validate(line["grant"]))
        for line in lines
    ]


def copy_base(folder: Path) -> None:
    """Copies the devnet's base as a version that takes every engine and type, so that only limits decide verdicts."""
    shutil.copytree(devnet_base(), folder)
    recipe = read_recipe(folder)
    eligible = list(eligible_prompts(folder, recipe))
    write_recipe(folder, recipe.model_copy(update={"arithmetic": PAIRS}), eligible=eligible)


def node() -> Address:
    """Returns the node that all measured work belongs to."""
    return address("0x" + "a1" * 20)


def trick_of(name: str) -> Trick:
    """Returns the trick of a batch."""
    if not name:
        return Trick()
    if name in CLOSE:
        return CLOSE[name][0]()
    return QUICKER.get(name, ATTACKS[name].trick)()


def examiner(calibration: Path | None, *, sandboxes: Sandboxes | None = None) -> Procedure:
    """Returns an examiner configured as a validator on this machine would be."""
    told = ExaminerSettings(home=Path())
    return Procedure(
        reader=LimitedReader(sandboxes or Sandboxes(), most=told.most),
        vllm=VllmCache(VllmPlace(), budget=1 << 30),
        models=ModelCache(torch.device("cpu"), budget=told.policy_memory or 4 << 30),
        calibration=RolloutCalibration.shipped() if calibration is None else RolloutCalibration.read(calibration),
        dtype=told.dtype,
        margin=told.margin,
        scoring=told.scoring_budget,
    )


def history_of(version: Path, home: Path) -> tuple[Path, ...]:
    """Makes earlier weights: one small step behind, then two and one at the devnet's rate.

    The attack `previous-checkpoint` uses the last of them.
    """
    folders = [home / name for name in ("small", "two", "one")]
    write_changed(version, folders[0], lambda tensors: behind(tensors, rate=SMALL_RATE, seed=3))
    write_changed(version, folders[2], lambda tensors: behind(tensors, rate=DEVNET_RATE, seed=1))
    write_changed(folders[2], folders[1], lambda tensors: behind(tensors, rate=DEVNET_RATE, seed=2))
    return tuple(folders)


def behind(tensors: Tensors, *, rate: float, seed: int) -> Tensors:
    """Moves weights as one step of Adam does: each by the learning rate, up or down."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: weight + rate * torch.randn(weight.shape, generator=generator).sign()
        for name, weight in sorted(tensors.items())
    }


_stands: list[Stand] = []


def _open_stand(calibration: Path | None, room: str) -> None:
    _stands.append(Stand(calibration, Path(tempfile.mkdtemp(dir=room))))


def _run(batch: Batch) -> tuple[Batch, Tally]:
    return batch, _stands[0].run(batch)


def run_all(
    batches: list[Batch], *, processes: int, calibration: Path | None, progress: Callable[[Batch], None]
) -> dict[tuple[str, str], Tally]:
    """Runs all batches, and returns the tally of each (name, type, batch)."""
    tallies: dict[tuple[str, str], Tally] = {}
    with (
        tempfile.TemporaryDirectory(prefix="muster-attacks-") as room,
        ProcessPoolExecutor(
            processes, mp_context=get_context("spawn"), initializer=_open_stand, initargs=(calibration, room)
        ) as pool,
        _ended_with_us(),
    ):
        for done in as_completed([pool.submit(_run, batch) for batch in batches]):
            batch, tally = done.result()
            tallies.setdefault(batch.key, Tally()).merge(tally)
            progress(batch)
    return tallies


@contextmanager
def _ended_with_us() -> Iterator[None]:
    """Ends the pool's processes when this process gets SIGTERM; the pool would otherwise finish all its work first."""
    try:
        yield
    except BaseException:
        for process in active_children():
            process.terminate()
        raise
