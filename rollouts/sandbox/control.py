"""The socket between this side and a sandbox's server: one packet per message, descriptors beside it."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from datetime import timedelta

from pydantic import BaseModel, ConfigDict, ValidationError

from rollouts.sandbox.errors import SandboxUnavailable

_MOST_PACKET = 64 * 1024


class _Packet(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerReady(_Packet):
    """The server has imported what its jobs need."""

    ready: bool
    pid: int
    """As it sees itself: 1 in a process namespace of its own."""
    root: bool


class JobReport(_Packet):
    """A job has ended."""

    job: int
    confined: bool
    """Whether it got as far as a stranger's code."""
    signal: int
    exit: int
    cpu_seconds: float


class SandboxControl:
    """This side's end."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def fileno(self) -> int:
        """To wait on, for a packet."""
        return self.ours.fileno()

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Sends a packet.

        Raises:
            SandboxUnavailable: The server is gone.
        """
        try:
            socket.send_fds(self.ours, [json.dumps(message).encode()], list(descriptors))
        except OSError as error:
            raise SandboxUnavailable("a sandbox has ended") from error

    def await_ready(self, within: timedelta) -> ServerReady:
        """Receives the server's first packet.

        Raises:
            SandboxUnavailable: It ended, or said nothing in time.
        """
        self.ours.settimeout(within.total_seconds())
        try:
            return ServerReady.model_validate_json(self._receive())
        except ValidationError as error:
            raise SandboxUnavailable("a sandbox speaks another language") from error
        finally:
            self.ours.settimeout(None)

    def report(self) -> JobReport:
        """Receives the word that a job has ended.

        Raises:
            SandboxUnavailable: The server is gone.
        """
        try:
            return JobReport.model_validate_json(self._receive())
        except ValidationError as error:
            raise SandboxUnavailable("a sandbox speaks another language") from error

    def close(self) -> None:
        """Ends the conversation; the server ends when it hears that."""
        self.ours.close()
        self.theirs.close()

    def _receive(self) -> bytes:
        try:
            packet = self.ours.recv(_MOST_PACKET)
        except OSError as error:
            raise SandboxUnavailable(f"a sandbox does not answer: {error}") from error
        if not packet:
            raise SandboxUnavailable("a sandbox has ended")
        return packet
