"""Process 0's side of a mesh: one thing after the other is said to all and done by all; between, they stay in touch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import structlog
import torch

from protocol.errors import MusterError
from trainer.distributed.channel import Channel, spoken
from trainer.distributed.commands import CommandKind, GroupCommand
from trainer.distributed.shutdown import ShutdownSignal
from trainer.errors import MeshBroken

T = TypeVar("T")

LONGEST_SILENCE_S = 5.0
"""After so long without a command all say that they are there: a process that died is noticed before it is needed."""

_log = structlog.get_logger(__name__)


class Leader:
    """Leads the other processes until `close`.

    Args:
        channel: To them.
        ending: Whether this process should end.
        on_end: Called, from any thread, when the run should end: a process was told to, or is gone.
    """

    def __init__(self, channel: Channel, *, ending: ShutdownSignal, on_end: Callable[[], None]) -> None:
        self._channel = channel
        self._ending = ending
        self._on_end = on_end
        self._broken: MeshBroken | None = None
        self._one_at_a_time = threading.Lock()
        self._closing = threading.Event()
        self._staying = threading.Thread(target=self._stay, name="mesh", daemon=True)
        self._staying.start()

    def together(self, command: GroupCommand, work: Callable[[], T]) -> T:
        """Runs a command on all processes, including this one, and returns the local result.

        Raises:
            MeshBroken: A process is lost, or failed where others succeeded.
            MusterError: All processes failed, for this reason.
        """
        with self._one_at_a_time:
            self.check()
            try:
                return self._do(command, work)
            except MeshBroken as error:
                self._broken = error
                self._on_end()
                raise
            except MusterError:
                raise
            except BaseException:
                self._broken = MeshBroken(f"process 0 failed at {command.word.value!r}")
                raise

    def check(self) -> None:
        """Returns if all processes are there, as far as is known.

        Raises:
            MeshBroken: They are not.
        """
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """Ends the other processes; `check` says afterwards whether they were there.

        One that can't be told finds that this one is gone.
        """
        self._closing.set()
        self._staying.join()
        with self._one_at_a_time:
            if self._broken is None:
                try:
                    self._channel.send(GroupCommand(word=CommandKind.END))
                    self._channel.stand(failed=False, ending=True)
                except MeshBroken as error:
                    self._broken = error
            self._channel.leave()

    def _do(self, command: GroupCommand, work: Callable[[], T]) -> T:
        if self._channel.device.type == "cuda":
            torch.cuda.set_device(self._channel.device)  # each thread has its own
        self._channel.send(command)
        error: MusterError | None = None
        try:
            with spoken(f"all do {command.word.value!r}"):
                found = work()
        except MeshBroken:
            raise
        except MusterError as raised:
            error = raised
        standing = self._channel.stand(failed=error is not None, ending=self._ending.wanted)
        if standing.ending:
            self._on_end()
        if error is not None and standing.failed == self._channel.place.processes:
            raise error
        if standing.failed:
            raise MeshBroken(
                f"{standing.failed} of {self._channel.place.processes} processes could not do {command.word.value!r}"
            ) from error
        return found

    def _stay(self) -> None:
        pause = min(LONGEST_SILENCE_S, self._channel.timeout.total_seconds() / 4)
        while not self._closing.wait(pause):
            try:
                self.together(GroupCommand(word=CommandKind.STAY), lambda: None)
            except MeshBroken as error:
                _log.error("mesh-broken", why=error.detail)
                return
