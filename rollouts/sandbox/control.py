"""The socket to a sandbox's server: one packet per message, with file descriptors attached."""

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
    """The server has imported the modules of its jobs."""

    ready: bool
    pid: int
    """The server's own view of its pid: 1 in its own pid namespace."""
    root: bool


class JobReport(_Packet):
    """A job has ended."""

    job: int
    confined: bool
    """True if the job was confined before it ran untrusted code."""
    signal: int
    exit: int
    cpu_seconds: float


class ObjectPrepared(_Packet):
    """The server has made an object that jobs inherit, or failed to make it."""

    prepared: str
    fault: str
    """Empty if the object was made."""
    out_of_memory: bool
    """True if the server could not make the object within the memory limit."""


class SandboxControl:
    """The caller's end of the socket."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def fileno(self) -> int:
        """Returns the descriptor, for waiting for a packet."""
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
            SandboxUnavailable: The server ended, or sent nothing in time.
        """
        self.ours.settimeout(within.total_seconds())
        try:
            return ServerReady.model_validate_json(self._receive())
        except ValidationError as error:
            raise SandboxUnavailable("a sandbox sent an invalid message") from error
        finally:
            self.ours.settimeout(None)

    def await_prepared(self, key: str, within: timedelta) -> ObjectPrepared:
        """Waits until the server has made an object, or has failed to make it.

        Raises:
            SandboxUnavailable: The server is gone, or did not finish in time. With less load on the machine it may
                finish in time.
        """
        self.ours.settimeout(within.total_seconds())
        try:
            answer = ObjectPrepared.model_validate_json(self.ours.recv(_MOST_PACKET))
        except TimeoutError as error:
            raise SandboxUnavailable(
                f"a sandbox did not prepare an object within {within.total_seconds():g} s",
                hint="try again when the machine has less load, or choose options with smaller objects",
            ) from error
        except (OSError, ValidationError) as error:
            raise SandboxUnavailable("a sandbox ended while it prepared an object") from error
        finally:
            self.ours.settimeout(None)
        if answer.prepared != key:
            raise SandboxUnavailable("a sandbox prepared another object")
        return answer

    def report(self) -> JobReport:
        """Receives the report of a job's end.

        Raises:
            SandboxUnavailable: The server is gone.
        """
        try:
            return JobReport.model_validate_json(self._receive())
        except ValidationError as error:
            raise SandboxUnavailable("a sandbox sent an invalid message") from error

    def close(self) -> None:
        """Closes the socket, which ends the server."""
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
