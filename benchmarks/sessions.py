"""Measures tokens per second of slots one after another and of overlapping slots; `python -m benchmarks.sessions`.

Answers have lengths of 1 to 8 times the shortest, so an engine that finishes one slot before the next computes small
batches at the end of every slot. With overlapping slots, a slot begins as soon as fewer answers are missing than the
batch holds, as in the rollout task. Both ways answer the same requests with proofs, in alternating order; the tokens
are compared. Models have random weights. For vLLM on a CPU use `OMP_NUM_THREADS=1 .tools/vllm/bin/python`.

`--engine`, `--model`, `--slots`, `--batch` and `--shortest` choose others. `--simulate` loads no model: it counts
steps, and prints how full the batch is for each number of slots at once and of slots per version.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.ending import end_in_order
from benchmarks.models import SHAPES, random_model
from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.batch_usage import UsageSeconds
from rollouts.engines.interface import Completion, Job, SampleRequest, SessionEngine
from rollouts.engines.opening import open_engine
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters
from rollouts.task.loop import MOST_SLOTS

_SPREAD = (1, 1.35, 1.8, 2.4, 3.3, 4.4, 5.9, 8)
"""Lengths in multiples of the shortest; each group of a slot has all of them."""

Answers = dict[tuple[int, int, int], tuple[int, ...]]
"""Tokens by slot, length and sample."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One pass over all slots: tokens, wall and CPU seconds, use of the batch, and the answers."""

    tokens: int
    wall: float
    cpu: float
    usage: UsageSeconds
    answers: Answers


@dataclass(frozen=True, slots=True)
class Work:
    """Slots of `batch` answers; a slot has prompts of 24 to 31 tokens, each for one answer of every length."""

    slots: int
    batch: int
    shortest: int

    def jobs(self, slot: int, answers: Answers) -> list[Job]:
        """Returns the jobs of a slot: one for each length, since a job has one limit of new tokens."""
        jobs = []
        for at, times in enumerate(_SPREAD):
            requests = tuple(
                SampleRequest(
                    sample=at * self.batch + group,
                    prompt_tokens=tuple(4 + (slot * 5 + group * 7 + place * 3) % 60 for place in range(24 + group % 8)),
                    seed=slot.to_bytes(32, "big"),
                )
                for group in range(self.batch // len(_SPREAD))
            )

            def keep(completion: Completion, key: tuple[int, int] = (slot, at)) -> None:
                answers[(*key, completion.sample)] = completion.tokens

            limits = SamplingParameters(max_new_tokens=round(times * self.shortest))
            jobs.append(Job(requests=requests, parameters=limits, on_answer=keep))
        return jobs


def run(engine: SessionEngine, work: Work, *, slots_at_once: int) -> Measured:
    """Answers all slots, of which at most `slots_at_once` are under way."""
    answers: Answers = {}
    before, wall, cpu = engine.usage.read(), time.perf_counter(), time.process_time()
    session = engine.open()
    waiting, under_way = list(range(work.slots)), list[Sequence[Future[None]]]()
    computing: Iterator[Completion] = iter(())
    while waiting or session.unanswered:
        under_way = [slot for slot in under_way if not all(done.done() for done in slot)]
        room = session.unanswered < engine.max_batch if slots_at_once > 1 else not session.unanswered
        if waiting and room and len(under_way) < slots_at_once:
            jobs = work.jobs(waiting.pop(0), answers)
            for job in jobs:
                session.add(job)
            under_way.append([job.done for job in jobs])
            continue
        if next(computing, None) is None:
            computing = iter(session.completions())
    session.close()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Measured(sum(map(len, answers.values())), wall, cpu, engine.usage.read() - before, answers)


@dataclass(frozen=True, slots=True)
class Simulated:
    """Steps until all slots of a version are finished, mean fill of the batch, and share of steps under half of it."""

    steps: int
    fill: float
    under_half: float


def simulate(slots: int, *, batch: int, shortest: int, slots_at_once: int) -> Simulated:
    """Counts the steps of an engine whose batch has as many rows as a slot has answers."""
    lengths = [round(times * shortest) for times in _SPREAD for _ in range(batch // len(_SPREAD))]
    waiting, growing = list[tuple[int, int]](), list[tuple[int, int]]()
    left, begun, sizes = dict[int, int](), 0, list[int]()
    while True:
        while begun < slots and len(left) < slots_at_once and (len(waiting) + len(growing) < batch or not left):
            waiting += [(begun, length) for length in lengths]
            left[begun] = len(lengths)
            begun += 1
        room = batch - len(growing)
        growing, waiting = growing + waiting[:room], waiting[room:]
        if not growing:
            break
        sizes.append(len(growing))
        for slot, length in growing:
            left[slot] -= length == 1
        growing = [(slot, length - 1) for slot, length in growing if length > 1]
        left = {slot: answers for slot, answers in left.items() if answers}
    under_half = sum(2 * size < batch for size in sizes) / len(sizes)
    return Simulated(len(sizes), sum(sizes) / len(sizes) / batch, under_half)


def print_simulation(batch: int, shortest: int) -> None:
    """Prints the simulation's figures."""
    print(
        "slots per version, slots at once: batch full on average, less than half full, steps of one at a time / these"
    )
    for slots in (1, 4, 16, 64):
        one = simulate(slots, batch=batch, shortest=shortest, slots_at_once=1)
        for at_once in (1, 2, 3, 4):
            found = simulate(slots, batch=batch, shortest=shortest, slots_at_once=at_once)
            ratio = one.steps / found.steps
            print(f"  {slots:2}, {at_once}: {found.fill:4.0%} {found.under_half:4.0%} {ratio:5.2f}")


def main() -> None:
    """Prints tokens per second of slots one after another and of overlapping slots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=EngineName, default=EngineName.TORCH)
    parser.add_argument("--model", choices=SHAPES, default="tiny, 2 M")
    parser.add_argument("--vocabulary", type=int, default=512, help="tokens of the model's vocabulary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", type=Dtype, default=Dtype.FLOAT32)
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32, help="rows of the engine, and answers of a slot")
    parser.add_argument("--shortest", type=int, default=32, help="tokens of the shortest answers")
    parser.add_argument("--simulate", action="store_true")
    given = parser.parse_args()
    if given.simulate:
        print_simulation(given.batch, given.shortest)
        return
    torch.set_num_threads(1)
    work = Work(given.slots, given.batch, given.shortest)
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(given.engine, dtype=given.dtype, device="cpu", max_batch=given.batch)
        engine.load(random_model(Path(folder) / "model", given.model, vocabulary=given.vocabulary), version=ZERO_DIGEST)
        run(engine, Work(1, given.batch, 8), slots_at_once=1)
        passes: dict[int, list[Measured]] = {1: [], MOST_SLOTS: []}
        for _ in range(given.rounds):
            for slots_at_once, measured in passes.items():
                measured.append(run(engine, work, slots_at_once=slots_at_once))
        engine.close()
    one, two = [statistics.median(m.tokens / m.wall for m in passes[n]) for n in (1, MOST_SLOTS)]
    one_cpu, two_cpu = [statistics.median(m.tokens / m.cpu for m in passes[n]) for n in (1, MOST_SLOTS)]
    print(f"{given.engine.value}, {given.model}, {given.dtype.value}, batch of {given.batch}, {given.slots} slots")
    for name, slots_at_once in (("one slot at a time", 1), ("overlapping slots", MOST_SLOTS)):
        measured = passes[slots_at_once]
        rates = [m.tokens / m.wall for m in measured]
        under = statistics.median(m.usage.under_half / m.usage.total for m in measured)
        cpu = statistics.median(1e3 * m.cpu / m.tokens for m in measured)
        print(
            f"  {name:20} {statistics.median(rates):8.0f} tokens/s ({min(rates):.0f} to {max(rates):.0f}), "
            f"{cpu:.3f} CPU ms/token, batch less than half full in {under:.0%} of the time"
        )
    (first, *_), (second, *_) = passes[1], passes[MOST_SLOTS]
    differing = sum(first.answers[key] != tokens for key, tokens in second.answers.items())
    print(f"  {two / one:.2f} times, by CPU time {two_cpu / one_cpu:.2f} times")
    print(f"  {differing} of {len(first.answers)} answers differ")


if __name__ == "__main__":
    end_in_order()
    main()
