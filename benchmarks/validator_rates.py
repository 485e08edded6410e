"""Compares a validator's rate with generation on the same machine; a part of `benchmarks.validator`.

Both do all of their work: the generator draws, proves, scores and writes; the validator reads in its sandbox, makes
every check and draws a conclusion. They are measured in alternating order in one process with one thread, and medians
are compared: of CPU seconds, including the sandbox's, so that other load on the machine changes little. Prefill alone,
which every check needs, is listed beside them: generation over prefill is the upper bound of the ratio.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.attack_tries import examiner, node
from benchmarks.letters_model import save_tokenizer
from benchmarks.models import SHAPES, random_model
from cli.devnet.attacks.attack import Trick
from rollouts.engines.torch.engine import TorchEngine
from rollouts.files.schema import read_rollouts
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Dtype
from rollouts.prefill import PrefillItem, prefill
from rollouts.recipe import EnvironmentChoice, PromptRange, Recipe, SamplingChoice, write_recipe
from rollouts.sandbox import Job, JobOutcome, Sandboxes, SandboxKind
from tests.kit.attack_harness import AttackHarness, HandedIn
from validator.audit.draw import RowDraw
from validator.examination.channel import Order
from validator.examination.interface import Conclusion
from validator.examination.procedure import Procedure

FLOOR = 0.1
"""The devnet's audit floor: the share of rows examined for a node with a good record."""
WANTED = {1: 25.0, 16: 6.0}
WANTED_GENERATORS = 20.0
_SEED = b"\5" * 32


class _CountedSandboxes(Sandboxes):
    """Sums the CPU time of sandbox jobs."""

    cpu = 0.0

    def run(self, kind: SandboxKind, job: Job) -> JobOutcome:
        """Runs a job and adds its CPU time."""
        outcome = super().run(kind, job)
        self.cpu += outcome.cpu.total_seconds()
        return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Median CPU seconds for one file.

    Args:
        tokens: Tokens of the file.
        generated: CPU seconds to make it.
        looked: CPU seconds to examine it.
        sandboxed: The part of `looked` in the sandbox that decodes.
        prefilled: CPU seconds to compute states and logits of the examined rows alone.
        stages: Wall seconds of the examinations, by name.
    """

    tokens: float
    generated: float
    looked: float
    sandboxed: float
    prefilled: float
    stages: dict[str, float]


def show_rates(console: Console, *, sizes: str, tokens: int, rounds: int) -> None:
    """Measures and prints the models whose names begin with one of `sizes`, separated by commas."""
    torch.set_num_threads(1)
    shapes = [shape for shape in SHAPES if shape.startswith(tuple(sizes.split(",")))]
    table = Table(
        title=f"{tokens} output tokens, torch float32, one thread, CPU time; medians of {rounds} rounds in turns"
    )
    columns = (
        "model",
        "answers",
        "rows looked at",
        "generator, tokens/CPU s",
        "validator, tokens/CPU s",
        "ratio",
        "wanted",
        "of prefill alone",
    )
    for column in (*columns, "wall time of the examination"):
        table.add_column(column, justify="left" if column in {"model", "wall time of the examination"} else "right")
    for shape in shapes:
        for answers, share in ((1, 1.0), (16, 1.0), (64, FLOOR)):
            print(f"{shape}: {answers} answers of {tokens} tokens", file=sys.stderr)
            pace = measure(shape, answers, share=share, tokens=tokens, rounds=rounds)
            table.add_row(shape, str(answers), f"{share:.0%}", *_cells(pace, answers, share))
    console.print(table)
    console.print(f"the rows with {FLOOR:.0%} say how many generators of its own size one validator keeps up with")


def _cells(pace: Pace, answers: int, share: float) -> list[str]:
    wanted = WANTED_GENERATORS if share < 1 else WANTED[answers]
    stages = [f"{name} {seconds * 1000:.0f} ms" for name, seconds in pace.stages.items() if seconds > 5e-4]
    return [
        f"{pace.tokens / pace.generated:,.0f}",
        f"{pace.tokens / pace.looked:,.0f}",
        f"{pace.generated / pace.looked:.1f}x",
        f"≥ {wanted:g}x",
        f"{pace.generated / pace.prefilled:.1f}x",
        ", ".join([f"decoding {pace.sandboxed * 1000:.0f} ms of CPU", *stages]),
    ]


def measure(shape: str, answers: int, *, share: float, tokens: int, rounds: int) -> Pace:
    """Measures one way to generate and to examine."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        folder = version_of(home / "version", shape, group=min(answers, 16), tokens=tokens)
        engine = TorchEngine(dtype=Dtype.FLOAT32, max_batch=answers)
        sandboxes = _CountedSandboxes()
        procedure = examiner(None, sandboxes=sandboxes)
        policy = load_policy(folder, dtype=Dtype.FLOAT32, device=torch.device("cpu"))
        with AttackHarness(engine, folder, history=(), home=home, node=node()) as workshop:
            groups = max(1, answers // 16)
            _warm(workshop, procedure, groups)
            made, looked, decoded, prefilled, counted = (list[float]() for _ in range(5))
            stages: dict[str, list[float]] = {}
            for number in range(rounds):
                began = time.process_time()
                work = workshop.hand_in(Trick(), workshop.grant(number, groups=groups))
                made.append(time.process_time() - began)
                assert work is not None
                began, sandboxes.cpu = time.process_time(), 0.0
                found = examined(procedure, work, folder, share=share)
                looked.append(time.process_time() - began + sandboxes.cpu)
                decoded.append(sandboxes.cpu)
                counted.append(work.units)
                prefilled.append(_prefilled(policy, work, found.audited))
                for stage, seconds in (found.timings.seconds if found.timings else {}).items():
                    stages.setdefault(stage, []).append(seconds)
    return Pace(
        tokens=statistics.median(counted),
        generated=statistics.median(made),
        looked=statistics.median(looked),
        sandboxed=statistics.median(decoded),
        prefilled=statistics.median(prefilled),
        stages={stage: statistics.median(of_one) for stage, of_one in stages.items()},
    )


def _prefilled(policy: Policy, work: HandedIn, rows: Sequence[int]) -> float:
    """Returns the CPU seconds of prefill."""
    samples = read_rollouts(work.path).samples
    answers = [PrefillItem(samples[row].prompt_tokens, samples[row].output_tokens) for row in rows]
    began = time.process_time()
    for _ in prefill(policy, answers):
        pass
    return time.process_time() - began


def _warm(workshop: AttackHarness, procedure: Procedure, groups: int) -> None:
    """Processes one file first, because it also pays for loading weights, kernels and a sandbox."""
    work = workshop.hand_in(Trick(), workshop.grant(1_000, groups=groups))
    assert work is not None
    examined(procedure, work, workshop.version.folder, share=1.0)


def examined(procedure: Procedure, work: HandedIn, folder: Path, *, share: float) -> Conclusion:
    """Returns the conclusion, which must be an acceptance."""
    order = Order(facts=work.facts, file=work.path, folder=folder, draw=RowDraw(seed=_SEED, share=share))
    found = procedure.examine(order, is_copy=lambda _: False)
    if not isinstance(found, Conclusion) or found.outcome.name != "ACCEPTED":
        raise RuntimeError(f"an honest file was not accepted: {found}")
    return found


def version_of(folder: Path, shape: str, *, group: int, tokens: int) -> Path:
    """Returns a version of random weights whose answers run to their limit."""
    random_model(folder, shape)
    save_tokenizer(folder)
    recipe = Recipe(
        environment=EnvironmentChoice(name="letters", version="1"),
        sampling=SamplingChoice(max_new_tokens=tokens),
        group_size=group,
        prompts=PromptRange(count=100_000),
    )
    write_recipe(folder, recipe)
    return folder
