"""Proofs while an engine generates: it hands over the rows of each step, and a thread of ours does the rest.

What a step costs the engine is one copy of its rows. Where these are on an accelerator they stay there until their
interval is whole; the thread fetches it, and computes in numpy, which leaves Python's lock to the engine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

import numpy as np
import torch

from protocol.errors import InvalidInput
from rollouts.toploc.background import BackgroundBuild, Parts
from rollouts.toploc.codec import Codec, check_states, stretches_of
from rollouts.toploc.proofs import TOPLOC


@dataclass(slots=True)
class _Growing:
    """A sequence that grows: its slot, how many rows wait there, how many it had in all, and its proofs."""

    slot: int
    waiting: int = 0
    rows: int = 0
    parts: Parts = field(default_factory=Parts)


class PendingProofs:
    """The proofs of a sequence that was finished.

    They are built together with others', so an engine that has more to do asks `done` and goes on; `result` hurries.
    """

    def __init__(self, parts: Parts, background: BackgroundBuild) -> None:
        self._parts = parts
        self._background = background

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return not self._parts.open

    def result(self) -> bytes:
        """Waits for the sequence's concatenated proofs, as `proofs_of` gives them for all its states at once.

        Raises:
            Unprovable: An interval has no proof in the format.
        """
        self._background.wait(self._parts)
        if self._parts.failure is not None:
            raise self._parts.failure
        return b"".join(self._parts.proofs)


class ProofBuilder:
    """Builds the proofs of many sequences at once while they grow. One thread uses it.

    A context manager: leaving it waits for what was finished, and drops the rest.

    Args:
        codec: The proof format.
        surplus: How many rows past its last token a sequence may get before it is finished; an engine that schedules
            the next step before it has seen the last token adds some.
        most_waiting_bytes: Of states that were handed over and are not proved yet. Above it `add` and `finish` wait.

    Raises:
        InvalidInput: The surplus is negative.
    """

    def __init__(self, *, codec: Codec = TOPLOC, surplus: int = 0, most_waiting_bytes: int = 256 << 20) -> None:
        if surplus < 0:
            raise InvalidInput(f"a surplus of {surplus} rows", hint="it is 0 or more")
        self._interval = codec.interval
        self._surplus = surplus
        self._span = codec.interval + surplus
        self._growing: dict[Hashable, _Growing] = {}
        self._free: list[int] = []
        self._rows: torch.Tensor | None = None
        self._background = BackgroundBuild(codec, most_waiting_bytes=most_waiting_bytes)

    @property
    def spent(self) -> timedelta:
        """Processor time that building has taken."""
        return self._background.spent

    def add(self, sequences: Sequence[Hashable], rows: torch.Tensor) -> None:
        """Takes one step's final hidden states.

        Args:
            sequences: Whose rows these are, each once, in any order; one not seen before begins.
            rows: (len(sequences), hidden), row i of `sequences[i]`; bfloat16, float16 or float32, on any device. They
                are copied: the engine may write over them.

        Raises:
            InvalidInput: They are no such rows, or not of the width and device of the rows before.
            Conflict: The builder is closed.
        """
        check_states(rows)
        if len(rows) != len(sequences) or len(set(sequences)) != len(sequences):
            raise InvalidInput(
                f"{len(rows)} rows for {len(sequences)} sequences, {len(set(sequences))} of them different",
                hint="give one row for each sequence of the step",
            )
        room = self._room(rows, new=sum(name not in self._growing for name in sequences))
        growing = [self._growing.get(name) or self._begin(name) for name in sequences]
        places = torch.from_numpy(np.array([one.slot * self._span + one.waiting for one in growing], np.int64))
        room.index_copy_(0, places.to(rows.device), rows.detach().to(torch.bfloat16))
        for one in growing:
            one.waiting += 1
            one.rows += 1
        if whole := [one for one in growing if one.waiting == self._span]:
            self._cut(room, whole)

    def finish(self, sequence: Hashable, *, rows: int) -> PendingProofs:
        """Ends a sequence, which may be begun anew after it.

        Args:
            sequence: As given to `add`.
            rows: The number of its output tokens. Rows that it got beyond them are no part of its proofs.

        Raises:
            InvalidInput: It never got so many rows, or more than `surplus` beyond them.
            Conflict: The builder is closed.
        """
        one = self._growing.get(sequence)
        got = one.rows if one else 0
        if rows < 0 or not 0 <= got - rows <= self._surplus:
            raise InvalidInput(
                f"sequence {sequence!r} has {rows} tokens and {got} rows of states",
                hint=f"each token has a row; at most {self._surplus} more are dropped at the end",
            )
        if one is None or self._rows is None:
            return PendingProofs(Parts(), self._background)
        start = one.slot * self._span
        left = self._rows[start : start + one.waiting - (got - rows)].clone()
        for stretch in stretches_of(left, self._interval):
            self._background.put(stretch, [one.parts] * len(stretch))
        self.discard(sequence)
        return PendingProofs(one.parts, self._background)

    def discard(self, sequence: Hashable) -> None:
        """Forgets a sequence; nothing happens if it is unknown."""
        if one := self._growing.pop(sequence, None):
            self._free.append(one.slot)

    def close(self) -> None:
        """Builds what was finished, and ends the thread. Closing twice does nothing."""
        self._growing.clear()
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, sequence: Hashable) -> _Growing:
        self._growing[sequence] = _Growing(self._free.pop())
        return self._growing[sequence]

    def _room(self, rows: torch.Tensor, *, new: int) -> torch.Tensor:
        """The rows that wait, (slots · span, hidden), with free slots for as many new sequences."""
        room, hidden = self._rows, rows.shape[1]
        if room is None:
            room = torch.empty(0, hidden, dtype=torch.bfloat16, device=rows.device)
        if room.shape[1] != hidden or room.device != rows.device:
            raise InvalidInput(
                f"rows of width {hidden} on {rows.device} after rows of width {room.shape[1]} on {room.device}",
                hint="use one builder for each model",
            )
        if new > len(self._free):
            slots = len(room) // self._span
            more = max(slots, new - len(self._free))
            room = torch.cat([room, room.new_empty(more * self._span, hidden)])
            self._free.extend(range(slots, slots + more))
        self._rows = room
        return room

    def _cut(self, room: torch.Tensor, whole: Sequence[_Growing]) -> None:
        """Hands over the first interval of sequences whose slots are full, and moves what follows it to the front."""
        slots = torch.tensor([one.slot for one in whole], device=room.device)
        spans = room.view(-1, self._span, room.shape[1])
        full = spans[slots]
        if self._surplus:
            spans[slots, : self._surplus] = full[:, self._interval :]
        for one in whole:
            one.waiting = self._surplus
        chunks = full[:, : self._interval].reshape(len(whole), -1)
        self._background.put(chunks, [one.parts for one in whole])
