"""Background thread that builds proofs in batches, with a bound on queued bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import torch

from rollouts.toploc.interval_batching import Cut, Growing, Rest, Rows, Run, gather
from rollouts.toploc.polynomial import PolynomialCodec


class BackgroundBuild:
    """Builds proofs on its own thread; each round takes all queued rows.

    Args:
        codec: The proof format.
        surplus: Number of newest rows for which no proofs are built while a sequence is unfinished, because they may
            lie beyond its last token.
        most_waiting_bytes: `put` blocks while its rows would make the queue exceed this size, unless the queue is
            empty.
    """

    def __init__(self, codec: PolynomialCodec, *, surplus: int, most_waiting_bytes: int) -> None:
        self._codec = codec
        self._surplus = surplus
        self._most = most_waiting_bytes
        self._runs: list[Run] = []
        self._finished: list[Growing] = []
        self._begun: list[tuple[Growing, Rows]] = []
        self._ready: torch.Event | None = None
        self._bytes = 0
        self._rest: Rest | None = None
        self._closed = False
        self._seconds = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="toploc", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """True if `close` was called; then `put` must not be called any more."""
        return self._closed

    @property
    def spent(self) -> timedelta:
        """CPU time used by the thread."""
        return timedelta(seconds=self._seconds)

    def put(
        self,
        runs: Sequence[Run],
        finished: Sequence[Growing],
        *,
        size: int,
        begun: Sequence[tuple[Growing, Rows]] = (),
    ) -> None:
        """Queues runs, and the sequences that end with these runs or earlier.

        Args:
            runs: Runs of steps; the caller must not change the runs or their rows any more.
            finished: Finished sequences, each once.
            size: The bytes of the rows.
            begun: Rows with which sequences begin, before their rows in the runs.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self._most)
            self._runs.extend(runs)
            self._finished.extend(finished)
            self._begun.extend(begun)
            self._bytes += size
            if runs and runs[-1].steps[-1].device.type != "cpu":
                self._ready = torch.Event(runs[-1].steps[-1].device.type)
                self._ready.record()
            self._changed.notify_all()

    def wait(self, one: Growing) -> None:
        """Blocks until all proofs of this sequence are built; it must be finished and queued."""
        with self._changed:
            self._changed.wait_for(lambda: one.complete)

    def close(self) -> None:
        """Builds the proofs of finished sequences, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._runs or self._finished or self._closed)
                runs, self._runs = self._runs, []
                finished, self._finished = self._finished, []
                begun, self._begun = self._begun, []
                ready, size = self._ready, self._bytes
            if not runs and not finished:
                return
            began = time.thread_time()
            for one in finished:
                one.ending = True
            if begun:
                first = Rest.of(begun)
                self._rest = first if self._rest is None else self._rest.and_rows_of(first)
            self._work(runs, ready)
            self._seconds += time.thread_time() - began
            with self._changed:
                for one in finished:
                    one.complete = True
                self._bytes -= size
                self._changed.notify_all()

    def _work(self, runs: list[Run], ready: torch.Event | None) -> None:
        try:
            if ready is not None:
                ready.synchronize()
            cut = gather(self._rest, runs, interval=self._codec.interval, surplus=self._surplus)
        except Exception as failure:  # noqa: BLE001 - `PendingProofs.result` raises it
            cut = Cut([], [], [], None)
            for one in (one for part in [self._rest, *runs] if part for one in part.live):
                one.failure = failure
        self._rest = cut.rest
        if not cut.stretches:
            return
        for one, proof in zip(cut.owners, self._proofs(cut.stretches, cut.sizes), strict=True):
            if isinstance(proof, bytes):
                one.proofs.append(proof)
            else:
                one.failure = one.failure or proof

    def _proofs(
        self, stretches: Sequence[torch.Tensor], sizes: Sequence[Sequence[int] | None]
    ) -> list[bytes | Exception]:
        """Returns for each chunk its proof, or the exception that building the proof raised."""
        try:
            return [*self._codec.build(stretches, sizes=sizes)]
        except Exception as failure:  # noqa: BLE001 - `PendingProofs.result` raises it
            if sum(map(len, stretches)) == 1:
                return [failure]
        chunks = [
            (chunk[None], None if of_one is None else [of_one[number]])
            for stretch, of_one in zip(stretches, sizes, strict=True)
            for number, chunk in enumerate(stretch)
        ]
        return [proof for chunk, size in chunks for proof in self._proofs([chunk], [size])]
