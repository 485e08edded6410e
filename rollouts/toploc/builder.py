"""Proofs while an engine generates: it hands over the rows of each step, and a thread of ours does the rest.

What a step costs the engine is at most a copy of its rows, on their own device. The thread fetches an interval's worth
of steps at once and computes in numpy and torch, which leave Python's lock to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch

from protocol.errors import Conflict, InvalidInput
from rollouts.toploc.background import BackgroundBuild
from rollouts.toploc.codec import Codec, check_states
from rollouts.toploc.gathering import Growing, Step
from rollouts.toploc.proofs import TOPLOC

_ENOUGH = 32
"""Finished sequences that are worth a start: one proof alone costs as much time as eight together."""


class PendingProofs:
    """The proofs of a sequence that was finished.

    They are built together with others', so an engine that has more to do asks `done` and goes on; `result` hurries.
    """

    def __init__(self, sequence: Growing, wait: Callable[[Growing], None]) -> None:
        self._sequence = sequence
        self._wait = wait

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._sequence.complete

    def result(self) -> bytes:
        """Waits for the sequence's concatenated proofs, as `proofs_of` gives them for all its states at once.

        Raises:
            Unprovable: An interval has no proof in the format.
        """
        self._wait(self._sequence)
        if self._sequence.failure is not None:
            raise self._sequence.failure
        return b"".join(self._sequence.proofs)


class ProofBuilder:
    """Builds the proofs of many sequences at once while they grow. One thread uses it.

    A context manager: leaving it waits for what was finished, and drops the rest.

    Args:
        codec: The proof format.
        surplus: How many rows past its last token a sequence may get before it is finished; an engine that schedules
            the next step before it has seen the last token adds some.
        most_waiting_bytes: Of states that were handed over and not looked at yet. Above it `add` waits. Beside them, an
            interval and the surplus of each sequence are kept.

    Raises:
        InvalidInput: The surplus is negative.
    """

    def __init__(self, *, codec: Codec = TOPLOC, surplus: int = 0, most_waiting_bytes: int = 256 << 20) -> None:
        if surplus < 0:
            raise InvalidInput(f"a surplus of {surplus} rows", hint="it is 0 or more")
        self._interval = codec.interval
        self._surplus = surplus
        self._most = most_waiting_bytes // 2  # half waits here, half at the thread
        self._growing: dict[Hashable, Growing] = {}
        self._begun = 0
        self._like: tuple[int, torch.device] | None = None
        self._steps: list[Step] = []
        self._finished: list[Growing] = []
        self._bytes = 0
        self._background = BackgroundBuild(codec, surplus=surplus, most_waiting_bytes=self._most)

    @property
    def spent(self) -> timedelta:
        """Processor time that building has taken."""
        return self._background.spent

    def add(self, sequences: Sequence[Hashable], rows: torch.Tensor, *, copy: bool = True) -> None:
        """Takes one step's final hidden states.

        Args:
            sequences: Whose rows these are, each once, in any order; one not seen before begins.
            rows: (len(sequences), hidden), row i of `sequences[i]`; bfloat16, float16 or float32, on any device.
            copy: False if nobody writes to the rows again, nor to what they are a view of. That is kept for up to an
                interval's steps.

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
        like = (rows.shape[1], rows.device)
        if like != (self._like or like):
            raise InvalidInput(f"rows of width and on device {like} after {self._like}", hint="one builder, one model")
        self._check_open()
        self._like = like
        live = [self._growing.get(name) or self._begin(name) for name in sequences]
        for one in live:
            one.rows += 1
        rows = rows.detach()
        self._steps.append(Step(live, rows.to(torch.bfloat16, copy=True) if copy else rows))
        self._bytes += rows.nbytes
        if len(self._steps) >= self._interval or self._bytes >= self._most:
            self._hand_over()

    def finish(self, sequence: Hashable, *, rows: int) -> PendingProofs:
        """Ends a sequence, which may be begun anew after it.

        Args:
            sequence: As given to `add`.
            rows: The number of its output tokens. Rows that it got beyond them are no part of its proofs.

        Raises:
            InvalidInput: It never got so many rows, or more than `surplus` beyond them.
            Conflict: The builder is closed.
        """
        one = self._growing.get(sequence) or Growing(self._begun)
        if rows < 0 or not 0 <= one.rows - rows <= self._surplus:
            raise InvalidInput(
                f"sequence {sequence!r} has {rows} tokens and {one.rows} rows of states",
                hint=f"each token has a row; at most {self._surplus} more are dropped at the end",
            )
        self._check_open()
        self._growing.pop(sequence, None)
        one.tokens = rows
        self._finished.append(one)
        if len(self._finished) >= _ENOUGH:
            self._hand_over()
        return PendingProofs(one, self._wait)

    def discard(self, sequence: Hashable) -> None:
        """Forgets a sequence; nothing happens if it is unknown."""
        if one := self._growing.pop(sequence, None):
            one.dropped = True

    def close(self) -> None:
        """Builds what was finished, and ends the thread. Closing twice does nothing."""
        for name in list(self._growing):
            self.discard(name)
        self._hand_over()
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._background.closed:
            raise Conflict("the proof builder is closed", hint="open another one")

    def _hand_over(self) -> None:
        if self._steps or self._finished:
            self._background.put(self._steps, self._finished)
        self._steps, self._finished, self._bytes = [], [], 0

    def _wait(self, one: Growing) -> None:
        if not one.complete:
            self._hand_over()
            self._background.wait(one)

    def _begin(self, sequence: Hashable) -> Growing:
        self._begun += 1
        self._growing[sequence] = Growing(self._begun)
        return self._growing[sequence]
