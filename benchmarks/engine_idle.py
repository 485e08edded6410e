"""Simulates how idle an engine is while a trainer learns; `python -m benchmarks.engine_idle`.

An engine answers the slots of one training step after another, and a trainer learns each step when its slots are
finished. A slot may begin with a version that is at most `asynchrony` steps old. Three ways of using the engine are
compared: one slot at a time; three overlapping slots of one version, as the rollout task does (decision 90); and
in-flight updates, where slots of all versions share the batch, which Muster refuses (decision 92). Time is counted in
steps of the engine, each of which takes the same time, however many rows it has. No random numbers: each slot has the
same lengths, in an order in which long and short ones alternate. `--slots` sets the slots of a training step.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist

from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from rollouts.task.loop import MOST_SLOTS

BATCH = 32
"""Rows of the engine, and answers of a slot."""
STEPS = 60
LEARN = 0.5
"""Time in which the trainer learns a step, in multiples of the shortest time in which the engine can answer it."""
LENGTHS = {
    "1:8": [round(32 * each) for each in (1, 1.35, 1.8, 2.4, 3.3, 4.4, 5.9, 8) for _ in range(BATCH // 8)],
    "long-tailed": [round(64 * math.exp(NormalDist().inv_cdf((at + 0.5) / BATCH))) for at in range(BATCH)],
}
"""Lengths of a slot's answers; those with a long tail are log-normal, and the longest has 8.6 times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of using the engine.

    Args:
        slots: Maximum slots under way.
        in_flight: Whether slots of several versions share the batch, as if new weights replaced old ones at once.
    """

    slots: int
    in_flight: bool = False


WAYS = {
    "one slot at a time": Way(slots=1),
    "overlapping slots": Way(slots=MOST_SLOTS),
    "in-flight updates": Way(slots=MOST_SLOTS, in_flight=True),
}


@dataclass(slots=True)
class Measured:
    """Time by the number of answers in the batch."""

    total: int = 0
    idle: int = 0
    under_half: int = 0

    def note(self, time: int, growing: int) -> None:
        """Adds a time in which the batch had this many answers."""
        self.total += time
        self.idle += time * (not growing)
        self.under_half += time * (2 * growing < BATCH)


@dataclass(slots=True)
class _Answer:
    slot: int
    left: int


def simulate(lengths: list[int], *, slots: int, asynchrony: int, way: Way) -> Measured:
    """Runs `STEPS` training steps of this many slots."""
    order = [length for pair in zip(lengths, reversed(lengths), strict=True) for length in pair][:BATCH]
    learn = round(LEARN * slots * sum(order) / BATCH)
    ready = {0: 0}  # time at which each version is published
    measured, now, begun, version = Measured(), 0, 0, 0
    waiting, growing = deque[_Answer](), list[_Answer]()
    missing = dict[int, int]()  # answers of each slot under way
    unfinished = [slots] * STEPS
    while True:
        while begun < STEPS * slots and len(missing) < way.slots:
            newest = max(each for each, at in ready.items() if at <= now)
            unanswered = len(waiting) + len(growing)
            room = unanswered < BATCH if way.slots > 1 else not unanswered
            drained = way.in_flight or not unanswered or newest == version
            if not room or not drained or newest < begun // slots - asynchrony:
                break
            version = newest
            missing[begun] = BATCH
            waiting.extend(_Answer(begun, length) for length in order)
            begun += 1
        while waiting and len(growing) < BATCH:
            growing.append(waiting.popleft())
        if not growing and begun == STEPS * slots:
            return measured
        published = min((at for at in ready.values() if at > now), default=math.inf)
        time = int(min(published - now, min((each.left for each in growing), default=math.inf)))
        measured.note(time, len(growing))
        now += time
        for each in growing:
            each.left -= time
            missing[each.slot] -= not each.left
        growing = [each for each in growing if each.left]
        for slot in [slot for slot, answers in missing.items() if not answers]:
            del missing[slot]
            unfinished[slot // slots] -= 1
            if not unfinished[slot // slots]:
                ready[slot // slots + 1] = max(now, *ready.values()) + learn


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=4, help="slots of the engine in each training step")
    slots = parser.parse_args().slots
    table = Table(title=f"{STEPS} steps of {slots} slots of {BATCH} answers, learning takes {LEARN:.0%} of generation")
    for column in ("lengths", "asynchrony", "engine", "no answer", "less than half full", "time, times"):
        table.add_column(column, justify="left" if column in ("lengths", "engine") else "right")
    for name, lengths in LENGTHS.items():
        for asynchrony in (0, 1, 2):
            base = 0
            for way_name, way in WAYS.items():
                found = simulate(lengths, slots=slots, asynchrony=asynchrony, way=way)
                base = base or found.total
                shares = (f"{share / found.total:.0%}" for share in (found.idle, found.under_half))
                table.add_row(name, str(asynchrony), way_name, *shares, f"{found.total / base:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
