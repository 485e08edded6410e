"""Fixtures: a version with earlier versions, nodes that attack with it, and the real examiner in separate processes."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.weights import Tensors, write_changed
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.runtime.clock import SystemClock
from protocol.wire.runs import CheckpointRef
from rollouts.engines.torch.engine import TorchEngine
from rollouts.precision import Dtype
from rollouts.recipe import RECIPE_FILE, LengthTargets
from tests.kit.attack_harness import AttackHarness, HandedIn
from tests.kit.tiny_model import rewrite_json
from trainer.presets import devnet_base
from validator.audit.draw import RowDraw
from validator.examination.examiner import LocalExaminer
from validator.examination.interface import Conclusion, Examination, NotJudged
from validator.examination.settings import ExaminerSettings

torch.set_num_threads(1)  # several threads in several test processes slow each other down on two cores

NODE = Key.from_hex("0x" + "a7" * 32)  # the same slots in each run, so the same files
STEP = 2e-4
"""The largest change of a weight by one optimiser step at the devnet's learning rate."""


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of the versions.

    Args:
        policies: Folder that the examiner reads: version 1 is the devnet's base, version 2 the same with a length
            reward.
        history: Weights before version 1, one and two steps; the oldest first.
        room: Folder for the files that nodes make.
    """

    policies: Path
    history: tuple[Path, ...]
    room: Path


@dataclass(slots=True)
class Judge:
    """The examiner and the facts that it needs besides the file."""

    examiner: LocalExaminer
    seen: set[Digest] = field(default_factory=set)

    async def __call__(self, work: HandedIn) -> Conclusion | NotJudged:
        """Examines every row."""
        lease = work.grant.lease.lease
        checkpoint = CheckpointRef(
            version=2 if "length" in work.path.parts else 1,
            attempt=0,
            digest=lease.digest,
            block=1,
            publisher=NODE.address,
        )
        asked = Examination(facts=work.facts, file=work.path, checkpoint=checkpoint, draw=RowDraw(seed=None, share=1.0))
        found = await self.examiner.examine(asked, is_copy=self._is_copy)
        if isinstance(found, Conclusion) and found.fingerprint is not None:
            self.seen.add(found.fingerprint)
        return found

    async def _is_copy(self, fingerprint: Digest) -> bool:
        return fingerprint in self.seen


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    home = tmp_path_factory.mktemp("attacks")
    policies, room = home / "policies", home / "room"
    for folder in (policies, room / "length"):
        folder.mkdir(parents=True)
    shutil.copytree(devnet_base(), policies / "1")
    shutil.copytree(devnet_base(), policies / "2")
    length = LengthTargets(targets=(3, 5), alpha=0.1, template="{prompt}")
    rewrite_json(policies / "2" / RECIPE_FILE, length=length.model_dump(mode="json"))
    write_changed(policies / "1", home / "one", lambda tensors: one_step_away(tensors, seed=1))
    write_changed(home / "one", home / "two", lambda tensors: one_step_away(tensors, seed=2))
    return Places(policies, (home / "two", home / "one"), room)


def one_step_away(tensors: Tensors, *, seed: int) -> Tensors:
    """Returns weights as after Adam's first step: each moved by the learning rate, up or down."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: weight + STEP * torch.randn(weight.shape, generator=generator).sign()
        for name, weight in sorted(tensors.items())
    }


@pytest.fixture(scope="session")
def workshop(places: Places) -> Iterator[AttackHarness]:
    """Returns a node that has worked on three versions."""
    with open_workshop(places) as made:
        yield made


def open_workshop(places: Places, *, max_batch: int = 64, version: int = 1) -> AttackHarness:
    """Opens a node with its own engine."""
    return AttackHarness(
        TorchEngine(dtype=Dtype.FLOAT32, max_batch=max_batch),
        places.policies / str(version),
        history=places.history,
        home=places.room / "length" if version == 2 else places.room,
        node=NODE.address,
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def judge(places: Places) -> AsyncIterator[Judge]:
    """Returns the examiner as a validator runs it."""
    home = places.room / "examiner"
    home.mkdir()
    async with LocalExaminer(examiner_settings(home, places), clock=SystemClock()) as examiner:
        yield Judge(examiner)


def examiner_settings(home: Path, places: Places) -> ExaminerSettings:
    """Returns settings whose time limits no test reaches, because load on the machine must not decide a verdict."""
    return ExaminerSettings(
        home=home,
        policies=places.policies,
        device="cpu",
        scoring=timedelta(hours=1),
        deadline=timedelta(hours=3),
    )


def handed_in(workshop: AttackHarness, trick: Trick, index: int, *, groups: int = 2) -> HandedIn:
    """Returns what the node uploads for one slot."""
    work = workshop.hand_in(trick, workshop.grant(index, groups=groups))
    assert work is not None
    return work
