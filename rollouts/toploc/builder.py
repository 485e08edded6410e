"""Builds proofs during generation: the engine passes each step's rows to a background thread.

A step costs the engine at most one copy of its rows on their own device, and no work per sequence while the batch stays
the same. The thread fetches the rows of many proofs at once and computes in numpy and torch, which release the GIL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import Conflict, InvalidInput
from rollouts.toploc.background import BackgroundBuild
from rollouts.toploc.interval_batching import Growing, Rows, Run
from rollouts.toploc.intervals import check_states
from rollouts.toploc.polynomial import PolynomialCodec
from rollouts.toploc.proofs import TOPLOC

_ENOUGH = 64
"""Proofs per batch: building one proof alone takes as long as building ten in such a batch."""
LONGEST_WAIT = timedelta(milliseconds=250)
"""Time after which the proofs of a finished sequence are built although the batch is not full, because a client may
wait for its answer while others grow."""


class PendingProofs:
    """The proofs of a finished sequence, built in batches with those of other sequences.

    An engine with more work polls `done`; `result` builds the proofs without waiting for a full batch.
    """

    def __init__(self, sequence: Growing, wait: Callable[[Growing], None]) -> None:
        self._sequence = sequence
        self._wait = wait

    def done(self) -> bool:
        """Returns whether `result` would return, or raise, immediately."""
        return self._sequence.complete

    def result(self) -> bytes:
        """Waits for the sequence's concatenated proofs; they equal `proofs_of` for all its states.

        Raises:
            Unprovable: An interval has no valid proof in the format.
        """
        self._wait(self._sequence)
        if self._sequence.failure is not None:
            raise self._sequence.failure
        return b"".join(self._sequence.proofs)

    def left(self) -> NDArray[np.uint16]:
        """Waits for the sequence, and returns the rows of its incomplete last interval as bit patterns of bfloat16.

        Only for sequences that were begun with `ProofBuilder.begin`.
        """
        self._wait(self._sequence)
        left = self._sequence.left
        return np.zeros((0, 0), np.uint16) if left is None else left.view(np.uint16)


class ProofBuilder:
    """Builds the proofs of many growing sequences. Not thread-safe.

    The builder is a context manager: on exit it completes the proofs of finished sequences and discards unfinished
    sequences.

    Args:
        codec: The proof format.
        surplus: Maximum number of rows beyond a sequence's last token that `add` receives before `finish`. Engines that
            schedule the next step before they see the last token add such rows.
        most_waiting_bytes: Limit of queued states in bytes; above the limit `add` blocks. In addition, the builder
            keeps one interval and the surplus of each sequence.

    Raises:
        InvalidInput: The surplus is negative.
    """

    def __init__(
        self, *, codec: PolynomialCodec = TOPLOC, surplus: int = 0, most_waiting_bytes: int = 256 << 20
    ) -> None:
        if surplus < 0:
            raise InvalidInput(f"the surplus can't be {surplus} rows", hint="give 0 or more")
        self._interval = codec.interval
        self._surplus = surplus
        self._most = most_waiting_bytes // 2  # half of the bytes wait here, half in the thread's queue
        self._growing: dict[Hashable, Growing] = {}
        self._like: tuple[int, torch.device] | None = None
        self._shape: torch.Size | None = None
        self._dtype: torch.dtype | None = None
        self._together: tuple[Hashable, ...] | None = None
        self._present: set[Hashable] = set()
        self._step = self._run_began = self._run_ends = 0
        self._runs: list[Run] = []
        self._finished: list[Growing] = []
        self._begun: list[tuple[Growing, Rows]] = []
        self._wait_ends = 0.0
        self._rows = self._bytes = 0
        self._background = BackgroundBuild(codec, surplus=surplus, most_waiting_bytes=self._most)

    @property
    def spent(self) -> timedelta:
        """CPU time spent on building."""
        return self._background.spent

    def begin(self, sequence: Hashable, rows: NDArray[np.uint16]) -> None:
        """Begins a sequence that continues another one, and that can be continued by `PendingProofs.left`.

        Args:
            sequence: The new sequence's key.
            rows: uint16 [rows, hidden], bit patterns in bfloat16 of the other sequence's last rows, which do not fill
                an interval.

        Raises:
            InvalidInput: The sequence is in progress, or the rows are not of this form.
        """
        width = rows.shape[1] if len(rows) or self._like is None else self._like[0]
        if (
            sequence in self._growing
            or rows.dtype != np.uint16
            or len(rows) >= self._interval
            or (self._like is not None and width != self._like[0])
        ):
            raise InvalidInput(
                f"sequence {sequence!r} can't begin with rows of shape {rows.shape} and type {rows.dtype}",
                hint="give the rows that the earlier sequence left",
            )
        self._growing[sequence] = one = Growing(rows=len(rows), continues=True)
        if len(rows):
            self._begun.append((one, rows.view(np.int16)))
            self._bytes += rows.nbytes

    def add(self, sequences: Sequence[Hashable], rows: torch.Tensor, *, copy: bool = True) -> None:
        """Adds one step's final hidden states.

        Args:
            sequences: The sequence of each row, each sequence once, in any order. A key that is not in progress begins
                a new sequence. Passing the same tuple object as in the last step skips all per-sequence work.
            rows: (len(sequences), hidden), row i of `sequences[i]`; bfloat16, float16 or float32, on any device.
            copy: False if the memory of the rows is never overwritten. The builder then keeps this memory until there
                are rows for a batch of proofs, or `most_waiting_bytes` of rows.

        Raises:
            InvalidInput: The rows do not fit `sequences`, or differ in width or device from those of earlier steps.
            Conflict: The builder is closed.
        """
        if sequences is not self._together or rows.shape != self._shape or rows.dtype is not self._dtype:
            self._begin_run(sequences, rows)
        if copy or rows.requires_grad:
            rows = rows.detach().to(torch.bfloat16, copy=copy)
        self._runs[-1].steps.append(rows)
        self._step += 1
        if self._step >= self._run_ends or (self._finished and time.monotonic() >= self._wait_ends):
            self._hand_over()

    def finish(self, sequence: Hashable, *, rows: int) -> PendingProofs:
        """Ends a sequence; afterwards the same key may begin a new sequence.

        Args:
            sequence: The sequence's key, as given to `add`.
            rows: Number of output tokens, plus the rows given to `begin`. Rows beyond this number are not part of the
                proofs.

        Raises:
            InvalidInput: The sequence has fewer than `rows` rows, or more than `surplus` rows beyond these.
            Conflict: The builder is closed.
        """
        one = self._growing.get(sequence) or Growing()
        if sequence in self._present:
            self._leave(sequence)
        if rows < 0 or not 0 <= one.rows - rows <= self._surplus:
            raise InvalidInput(
                f"sequence {sequence!r} has {rows} tokens, but {one.rows} rows of states",
                hint=f"give one row for each token; at most {self._surplus} more rows at the end are dropped",
            )
        self._check_open()
        self._growing.pop(sequence, None)
        one.tokens = rows
        if not self._finished:
            self._wait_ends = time.monotonic() + LONGEST_WAIT.total_seconds()
        if one.continues:
            self._wait_ends = 0.0  # the next turn of the dialogue waits: build these proofs at the next step
        self._finished.append(one)
        if len(self._finished) >= _ENOUGH:
            self._hand_over()
        return PendingProofs(one, self._wait)

    def discard(self, sequence: Hashable) -> None:
        """Drops a sequence without building its proofs; does nothing if the sequence is unknown."""
        if sequence in self._present:
            self._leave(sequence)
        if one := self._growing.pop(sequence, None):
            one.dropped = True

    def close(self) -> None:
        """Builds the proofs of finished sequences, and ends the thread. May be called repeatedly."""
        for name in list(self._growing):
            self.discard(name)
        self._hand_over()
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._background.closed:
            raise Conflict("the proof builder is closed", hint="open another one")

    def _begin_run(self, sequences: Sequence[Hashable], rows: torch.Tensor) -> None:
        """Checks a step whose sequences or shape differ from the last step's, and begins a run with it.

        Each further step of the run costs only one comparison.
        """
        check_states(rows)
        (count, hidden), device = rows.shape, rows.device
        if (hidden, device) != (self._like or (hidden, device)):
            raise InvalidInput(
                f"rows of width {hidden} on {device} can't follow rows of width and device {self._like}",
                hint="use one builder for each model",
            )
        names = set(sequences)
        if not count == len(sequences) == len(names):
            raise InvalidInput(
                f"a step has {count} rows for {len(sequences)} sequences, of which {len(names)} are different",
                hint="give one row for each sequence of the step",
            )
        self._check_open()
        self._end_run()
        for name in self._present - names:
            self._leave(name)
        for name in names - self._present:
            self._join(name)
        self._like, self._shape, self._dtype = (hidden, device), rows.shape, rows.dtype
        self._together = sequences if isinstance(sequences, tuple) else None  # the caller could change a list in place
        self._runs.append(Run(tuple([self._growing[name] for name in sequences]), []))
        wanted, room = _ENOUGH * self._interval - self._rows, (self._most - self._bytes) // (hidden * rows.itemsize)
        self._run_ends = self._step + -(-min(wanted, room) // max(1, count))

    def _end_run(self) -> None:
        steps = self._step - self._run_began
        if steps:
            self._rows += steps * len(self._runs[-1].live)
            self._bytes += steps * self._runs[-1].steps[0].nbytes
        self._run_began, self._together = self._step, None

    def _join(self, name: Hashable) -> None:
        one = self._growing.setdefault(name, Growing())
        one.since = self._step
        self._present.add(name)

    def _leave(self, name: Hashable) -> None:
        one = self._growing[name]
        one.rows += self._step - one.since
        self._present.remove(name)
        self._together = None

    def _hand_over(self) -> None:
        self._end_run()
        runs = [run for run in self._runs if run.steps]
        if runs or self._finished:
            self._background.put(runs, self._finished, size=self._bytes, begun=self._begun)
            self._begun = []
        self._runs, self._finished, self._rows, self._bytes = [], [], 0, 0

    def _wait(self, one: Growing) -> None:
        if not one.complete:
            self._hand_over()
            self._background.wait(one)
