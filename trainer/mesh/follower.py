"""Every other process of a mesh: it holds its share of the policy, and does what process 0 says.

It reads the base and nothing else: no key, no chain, no orchestrator, no state directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
import torch

from protocol.errors import Conflict, MusterError
from rollouts.engines.interface import Dtype
from trainer.errors import MeshBroken
from trainer.learning.settings import LearningSettings
from trainer.mesh.channel import Channel, spoken
from trainer.mesh.commands import Command, Word, groups_of, state_of
from trainer.mesh.ending import Ending
from trainer.mesh.place import Place, device_of
from trainer.run.base import Base, open_base
from trainer.run.model_student import ModelStudent
from trainer.run.settings import TrainerSettings

_log = structlog.get_logger(__name__)


def follow_trainer(settings: TrainerSettings, place: Place) -> None:
    """Follows process 0 until it ends the run.

    Args:
        settings: `start`, `device` and `mesh_timeout_s` are read; how it learns, process 0 says.
        place: This process's.

    Raises:
        MeshBroken: Process 0, or another one, is gone.
        MusterError: This process can't do what the others do.
    """
    device = device_of(settings.device, place)
    if device.type == "cpu":
        torch.set_num_threads(1)
    base, ending = open_base(settings.start), Ending()
    channel = Channel(place, device, timeout=settings.mesh_timeout)  # while others are waited for, a signal ends it
    with ending.by_signal():
        Follower(channel, base, ending).follow()


def terms_command(base: Base, learning: LearningSettings, settings: TrainerSettings) -> Command:
    """What all processes of a run begin with."""
    facts = {
        "base": base.digest,
        "learning": learning.model_dump(mode="json"),
        "dtype": settings.dtype.value,
        "seed": settings.seed,
    }
    return Command(word=Word.TERMS, facts=facts)


class Follower:
    """Does what it is told.

    Args:
        channel: To process 0.
        base: This machine's copy.
        ending: Whether this process should end: process 0 is told so, and ends the run for all.
    """

    def __init__(self, channel: Channel, base: Base, ending: Ending) -> None:
        self._channel = channel
        self._base = base
        self._ending = ending
        self._student: ModelStudent | None = None

    def follow(self) -> None:
        """Returns when process 0 ends the run.

        Raises:
            MeshBroken: A process is gone.
            MusterError: This process can't do what the others did.
        """
        try:
            self._follow()
        finally:
            self._channel.leave()

    def _follow(self) -> None:
        while (command := self._channel.receive()).word is not Word.END:
            error: MusterError | None = None
            try:
                with spoken(f"all do {command.word.value!r}"):
                    self._do(command)
            except MeshBroken:
                raise
            except MusterError as raised:
                error = raised
            standing = self._channel.stand(failed=error is not None, ending=self._ending.wanted)
            if error is not None and standing.failed < self._channel.place.processes:
                raise error
        self._channel.stand(failed=False, ending=True)

    def _do(self, command: Command) -> None:
        match command.word:
            case Word.TERMS:
                self._student = self._made(command.facts)
            case Word.BEGIN:
                self._own.begin(step=command.facts["step"])
            case Word.ADD:
                self._own.add(groups_of(command))
            case Word.FINISH:
                self._own.finish()
            case Word.STATE:
                self._own.snapshot(keep=False)
            case Word.RESTORE:
                self._own.restore(state_of(command))
            case Word.WEIGHTS:
                self._own.weights(keep=False)
            case Word.STAY | Word.END:
                pass

    @property
    def _own(self) -> ModelStudent:
        if self._student is None:
            raise Conflict("process 0 says what to do before it says with what")
        return self._student

    def _made(self, terms: Mapping[str, Any]) -> ModelStudent:
        if terms["base"] != self._base.digest:
            raise Conflict(
                f"{self._base.folder} is {self._base.digest}, and process 0 has {terms['base']}",
                hint="give every machine the same base",
            )
        _log.info("following", process=self._channel.place.rank, of=self._channel.place.processes)
        torch.manual_seed(terms["seed"])
        return ModelStudent(
            self._base,
            LearningSettings.model_validate(terms["learning"]),
            device=self._channel.device,
            dtype=Dtype(terms["dtype"]),
            mesh=self._channel.mesh,
        )
