"""Fixtures: a version, its slot, honest files of it, and examiners in this process and in a separate one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from protocol.identifiers import Digest, digest
from protocol.leases import WorkKey
from protocol.wire.runs import CheckpointRef
from rollouts.calibration.limits import RolloutCalibration
from rollouts.checks import CheckedVersion
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import write_rollouts
from rollouts.precision import Dtype
from rollouts.recompute.place import VllmPlace
from rollouts.sandbox import Sandboxes
from tests.kit.rollout_files import (
    BEACON,
    CHAIN,
    GROUPS,
    INDEX,
    NODE,
    POOL,
    RUN,
    SALT,
    STEP,
    as_version,
    facts_of,
    make,
)
from tests.kit.served_files import WORK_LEDGER
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

torch.set_num_threads(1)

MOST = ExaminerSettings(home=Path("nowhere")).most
ALL = RowDraw(seed=None, share=1.0)
OTHER_BEACON = digest(b"\1" * 32)


@pytest.fixture(scope="package")
def version(tmp_path_factory: pytest.TempPathFactory) -> CheckedVersion:
    return as_version(tiny_folder(tmp_path_factory.mktemp("policies") / "7"))


@pytest.fixture(scope="package")
def honest(version: CheckedVersion) -> RolloutFile:
    return make(version, facts=facts_of(version))


@pytest.fixture(scope="package")
def sandboxes() -> Iterator[Sandboxes]:
    found = Sandboxes()
    yield found
    found.close()


@pytest.fixture(scope="package")
def reader(sandboxes: Sandboxes) -> LimitedReader:
    return LimitedReader(sandboxes, most=MOST)


@pytest.fixture(scope="package")
def models() -> ModelCache:
    return ModelCache(torch.device("cpu"), budget=1 << 30)


def facts(version: CheckedVersion, file: RolloutFile, *, path: Path) -> WorkFacts:
    """Returns the facts of a submission by an honest node that leased the slot."""
    work = SubmittedWork(
        key=WorkKey(pool_id=POOL, run=RUN, step=STEP, node=NODE, index=INDEX).hash,
        pool_id=POOL,
        node=NODE,
        run=RUN,
        step=STEP,
        index=INDEX,
        version=7,
        checkpoint=version.digest,
        beacon_block=3,
        salt=SALT,
        groups=GROUPS,
        max_units=GROUPS * version.recipe.units_per_group,
        sha256=digest(hashlib.sha256(path.read_bytes()).digest()),
        units=file.units,
        block=9,
    )
    return WorkFacts(work=work, chain_id=CHAIN, work_ledger=WORK_LEDGER, beacon=BEACON)


def checkpoint(version: CheckedVersion) -> CheckpointRef:
    """Returns the reference to the version, without relays: only the local disk has it."""
    return CheckpointRef(version=7, attempt=0, digest=version.digest, block=1, publisher=NODE, relays=())


@dataclass
class Bench:
    """Examines files in this process."""

    procedure: Procedure
    version: CheckedVersion
    folder: Path
    asked: list[Digest]
    progress: int = 0
    """Number of reports of progress in all examinations."""

    def examine(
        self,
        file: RolloutFile | bytes,
        *,
        draw: RowDraw = ALL,
        copy: bool = False,
        change: Callable[[WorkFacts], WorkFacts] = lambda facts: facts,
        of: RolloutFile | None = None,
    ) -> Conclusion | NotJudged:
        """Returns the conclusion on a file, or on any bytes submitted as the file `of`."""
        path = self.folder / "file.parquet"
        if isinstance(file, bytes):
            path.write_bytes(file)
        else:
            write_rollouts(path, file)
        told = of if isinstance(file, bytes) else file
        assert told is not None
        submitted = change(facts(self.version, told, path=path))
        order = Order(facts=submitted, file=path, folder=self.version.folder, draw=draw)

        def is_copy(fingerprint: Digest) -> bool:
            self.asked.append(fingerprint)
            return copy

        return self.procedure.examine(order, is_copy=is_copy, progress=self._count_progress)

    def _count_progress(self) -> None:
        self.progress += 1

    def conclude(self, file: RolloutFile | bytes, **how: object) -> Conclusion:
        """Returns the conclusion, which must exist."""
        found = self.examine(file, **how)  # type: ignore[arg-type]  # of `examine`
        assert isinstance(found, Conclusion), found
        return found


@pytest.fixture
def bench(tmp_path: Path, version: CheckedVersion, reader: LimitedReader, models: ModelCache) -> Bench:
    return Bench(procedure_of(reader, models), version, tmp_path, [])


def procedure_of(
    reader: LimitedReader,
    models: ModelCache,
    *,
    dtype: Dtype | None = None,
    scoring: timedelta = timedelta(minutes=1),
    vllm: VllmCache | None = None,
) -> Procedure:
    """Returns the procedure as in an examiner process."""
    return Procedure(
        reader=reader,
        vllm=vllm or VllmCache(VllmPlace(), budget=1 << 30),
        models=models,
        calibration=RolloutCalibration.shipped(),
        dtype=dtype,
        margin=SLASH_MARGIN,
        scoring=scoring,
    )
