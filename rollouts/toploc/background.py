"""The thread that builds proofs: many at a time, and never more waiting than fits."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch

from protocol.errors import Conflict
from rollouts.toploc.codec import Codec

_ENOUGH = 32
"""Chunks that are worth a start: one alone costs as much time as eight together."""


@dataclass(slots=True)
class Parts:
    """One sequence's proofs so far, in order, or why one can't be built."""

    proofs: list[bytes] = field(default_factory=list)
    failure: Exception | None = None
    open: int = 0
    """Chunks that were handed over and are not built."""


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Chunks, (b, N), of b sequences; on an accelerator they are there once `ready` has happened."""

    states: torch.Tensor
    owners: Sequence[Parts]
    ready: torch.Event | None

    def apart(self) -> list[_Chunks]:
        """The same chunks, each alone."""
        return [_Chunks(self.states[i : i + 1], self.owners[i : i + 1], self.ready) for i in range(len(self.owners))]


class BackgroundBuild:
    """Builds proofs of chunks on a thread of its own, once enough of them wait, or somebody does.

    Args:
        codec: The proof format.
        most_waiting_bytes: Above it `put` waits, unless nothing else is waiting.
    """

    def __init__(self, codec: Codec, *, most_waiting_bytes: int) -> None:
        self._codec = codec
        self._most = most_waiting_bytes
        self._waiting: list[_Chunks] = []
        self._bytes = 0
        self._wanted = False
        self._closed = False
        self._seconds = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="toploc", daemon=True)
        self._thread.start()

    @property
    def spent(self) -> timedelta:
        """Processor time that the thread has used."""
        return timedelta(seconds=self._seconds)

    def put(self, states: torch.Tensor, owners: Sequence[Parts]) -> None:
        """Hands over chunks, (b, N), that nobody will write to again, with the sequence that each belongs to.

        Raises:
            Conflict: It is closed.
        """
        ready = None
        if states.device.type != "cpu":
            ready = torch.Event(states.device.type)
            ready.record()
        with self._changed:
            while self._bytes and self._bytes + states.nbytes > self._most:
                self._hurry()
                self._changed.wait()
            if self._closed:
                raise Conflict("the proof builder is closed", hint="open another one")
            self._waiting.append(_Chunks(states, owners, ready))
            self._bytes += states.nbytes
            for owner in owners:
                owner.open += 1
            if sum(len(chunks.owners) for chunks in self._waiting) >= _ENOUGH:
                self._hurry()

    def wait(self, parts: Parts) -> None:
        """Returns when every chunk of the sequence that was handed over has been built."""
        with self._changed:
            if parts.open:
                self._hurry()
            self._changed.wait_for(lambda: not parts.open)

    def close(self) -> None:
        """Builds what was handed over, and ends the thread."""
        with self._changed:
            self._closed = True
            self._hurry()
        self._thread.join()

    def _hurry(self) -> None:
        self._wanted = True
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted)
                chunks, self._waiting = self._waiting, []
                self._wanted = self._closed
                if self._closed and not chunks:
                    return
            began = time.thread_time()
            self._build(chunks)
            self._seconds += time.thread_time() - began

    def _build(self, chunks: Sequence[_Chunks]) -> None:
        proofs = self._proofs(chunks)
        owners = [owner for one in chunks for owner in one.owners]
        with self._changed:
            for owner, proof in zip(owners, proofs, strict=True):
                owner.open -= 1
                if isinstance(proof, bytes):
                    owner.proofs.append(proof)
                else:
                    owner.failure = owner.failure or proof
            self._bytes -= sum(one.states.nbytes for one in chunks)
            self._changed.notify_all()

    def _proofs(self, chunks: Sequence[_Chunks]) -> list[bytes | Exception]:
        """A proof for each chunk, or what was raised for it alone."""
        try:
            for one in chunks:
                if one.ready is not None:
                    one.ready.synchronize()
            return [*self._codec.build([one.states for one in chunks])]
        except Exception as failure:  # noqa: BLE001 - raised to whoever asks for the sequence's proofs
            if sum(len(one.owners) for one in chunks) == 1:
                return [failure]
        return [proof for one in chunks for chunk in one.apart() for proof in self._proofs([chunk])]
