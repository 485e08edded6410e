"""Processes of a mesh other than process 0: hold a shard of the policy and execute the commands of process 0.

These processes read the base (the version that training starts from); they use no key, chain, orchestrator or state
directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from protocol.errors import Conflict, MusterError
from protocol.runtime.logs import get_logger
from rollouts.precision import Dtype
from trainer.distributed.channel import Channel, mesh_errors
from trainer.distributed.commands import GroupCommand, GroupCommandKind, groups_of, state_of
from trainer.distributed.ranks import RankInfo, device_of
from trainer.distributed.shutdown import ShutdownSignal
from trainer.errors import MeshBroken
from trainer.learning.settings import LearningSettings
from trainer.policy.base_model import PolicyBase, open_base
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.settings import TrainerSettings

_log = get_logger(__name__)


def follow_trainer(settings: TrainerSettings, place: RankInfo) -> None:
    """Executes the commands of process 0 until process 0 ends the run.

    Args:
        settings: Only `start`, `device` and `mesh_timeout_s` are used; process 0 sends the learning settings.
        place: Rank of this process.

    Raises:
        MeshBroken: Another process has ended.
        MusterError: A command failed in this process, but not in all processes.
    """
    device = device_of(settings.device, place)
    if device.type == "cpu":
        torch.set_num_threads(1)
    base, ending = open_base(settings.start), ShutdownSignal()
    # The channel is opened outside `by_signal`, so that a signal ends this process while it waits for the others.
    channel = Channel(place, device, timeout=settings.mesh_timeout)
    with ending.by_signal():
        Follower(channel, base, ending).follow()


def terms_command(base: PolicyBase, learning: LearningSettings, settings: TrainerSettings) -> GroupCommand:
    """Returns the first command of a run, with base digest, learning settings, dtype and seed."""
    facts = {
        "base": base.digest,
        "learning": learning.model_dump(mode="json"),
        "dtype": settings.dtype.value,
        "seed": settings.seed,
    }
    return GroupCommand(word=GroupCommandKind.TERMS, facts=facts)


class Follower:
    """Executes commands of process 0.

    Args:
        channel: Channel to process 0.
        base: This machine's copy of the base.
        ending: Shutdown request of this process. After a request, process 0 ends the run for all processes.
    """

    def __init__(self, channel: Channel, base: PolicyBase, ending: ShutdownSignal) -> None:
        self._channel = channel
        self._base = base
        self._ending = ending
        self._opened: PolicyLearner | None = None

    def follow(self) -> None:
        """Executes commands until process 0 ends the run.

        Raises:
            MeshBroken: Another process has ended.
            MusterError: A command failed in this process, but not in all processes.
        """
        try:
            self._follow()
        finally:
            self._channel.leave()

    def _follow(self) -> None:
        while (command := self._channel.receive()).word is not GroupCommandKind.END:
            error: MusterError | None = None
            try:
                with mesh_errors(f"all processes execute {command.word.value!r}"):
                    self._do(command)
            except MeshBroken:
                raise
            except MusterError as raised:
                error = raised
            status = self._channel.agree(failed=error is not None, ending=self._ending.wanted)
            if error is not None and status.failed < self._channel.place.processes:
                raise error
        self._channel.agree(failed=False, ending=True)

    def _do(self, command: GroupCommand) -> None:
        match command.word:
            case GroupCommandKind.TERMS:
                self._opened = self._open_learner(command.facts)
            case GroupCommandKind.BEGIN:
                self._learner.begin(step=command.facts["step"])
            case GroupCommandKind.ADD:
                self._learner.add(groups_of(command))
            case GroupCommandKind.FINISH:
                self._learner.finish()
            case GroupCommandKind.STATE:
                self._learner.state(keep=False)
            case GroupCommandKind.RESTORE:
                self._learner.restore(state_of(command))
            case GroupCommandKind.WEIGHTS:
                self._learner.weights(keep=False)
            case GroupCommandKind.STAY | GroupCommandKind.END:
                pass

    @property
    def _learner(self) -> PolicyLearner:
        if self._opened is None:
            raise Conflict("process 0 sent a command before the terms of the run")
        return self._opened

    def _open_learner(self, terms: Mapping[str, Any]) -> PolicyLearner:
        if terms["base"] != self._base.digest:
            raise Conflict(
                f"the base in {self._base.folder} is {self._base.digest}, and process 0 has {terms['base']}",
                hint="give every machine the same base",
            )
        _log.info("following", process=self._channel.place.rank, of=self._channel.place.processes)
        torch.manual_seed(terms["seed"])
        return PolicyLearner(
            self._base,
            LearningSettings.model_validate(terms["learning"]),
            device=self._channel.device,
            dtype=Dtype(terms["dtype"]),
            mesh=self._channel.mesh,
        )
