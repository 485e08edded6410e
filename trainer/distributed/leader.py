"""Process 0's side of a mesh: sends commands that all processes execute, and heartbeats between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from protocol.errors import MusterError
from protocol.runtime.logs import get_logger
from trainer.distributed.channel import Channel, mesh_errors
from trainer.distributed.commands import GroupCommand, GroupCommandKind
from trainer.distributed.shutdown import ShutdownSignal
from trainer.errors import MeshBroken

T = TypeVar("T")

HEARTBEAT_S = 5.0
"""Maximum pause between commands. After it process 0 sends a heartbeat, so that it soon notices a lost process."""

_log = get_logger(__name__)


class Leader:
    """Sends commands to the other processes until `close`.

    Args:
        channel: Channel to the other processes.
        ending: Shutdown request of this process.
        on_end: Called, from any thread, when a process received a request to shut down or is lost: the run must end.
    """

    def __init__(self, channel: Channel, *, ending: ShutdownSignal, on_end: Callable[[], None]) -> None:
        self._channel = channel
        self._ending = ending
        self._on_end = on_end
        self._broken: MeshBroken | None = None
        self._command_lock = threading.Lock()
        self._closing = threading.Event()
        self._heartbeats = threading.Thread(target=self._send_heartbeats, name="mesh", daemon=True)
        self._heartbeats.start()

    def together(self, command: GroupCommand, work: Callable[[], T]) -> T:
        """Runs a command on all processes, including this one, and returns the local result.

        Raises:
            MeshBroken: A process is lost, or the command failed in some processes and succeeded in others.
            MusterError: The command failed in all processes; this is the error of process 0.
        """
        with self._command_lock:
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
        """Raises an error if an earlier command found that a process is lost.

        Raises:
            MeshBroken: A process is lost.
        """
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """Ends the other processes; a later `check` raises an error if a process was lost.

        A process that can't be reached ends when it notices that process 0 has left the mesh.
        """
        self._closing.set()
        self._heartbeats.join()
        with self._command_lock:
            if self._broken is None:
                try:
                    self._channel.send(GroupCommand(word=GroupCommandKind.END))
                    self._channel.agree(failed=False, ending=True)
                except MeshBroken as error:
                    self._broken = error
            self._channel.leave()

    def _do(self, command: GroupCommand, work: Callable[[], T]) -> T:
        if self._channel.device.type == "cuda":
            torch.cuda.set_device(self._channel.device)  # the current device is set per thread
        self._channel.send(command)
        error: MusterError | None = None
        try:
            with mesh_errors(f"all processes execute {command.word.value!r}"):
                found = work()
        except MeshBroken:
            raise
        except MusterError as raised:
            error = raised
        status = self._channel.agree(failed=error is not None, ending=self._ending.wanted)
        if status.ending:
            self._on_end()
        if error is not None and status.failed == self._channel.place.processes:
            raise error
        if status.failed:
            raise MeshBroken(
                f"{status.failed} of {self._channel.place.processes} processes could not execute {command.word.value!r}"
            ) from error
        return found

    def _send_heartbeats(self) -> None:
        pause = min(HEARTBEAT_S, self._channel.timeout.total_seconds() / 4)
        while not self._closing.wait(pause):
            try:
                self.together(GroupCommand(word=GroupCommandKind.STAY), lambda: None)
            except MeshBroken as error:
                _log.error("mesh-broken", why=error.detail)
                return
