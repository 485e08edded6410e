"""Verification of dialogues; `python -m benchmarks.dialogues`.

1. `attacks`: every attack on dialogues until `--tries` dialogues are forged. Each is judged alone, as a file of one row
   of which every row is recomputed: the share that fails a check, with the 95 % interval (Wilson), and the reasons. A
   dialogue that equals the honest one of its slot is no forgery and is not counted. The whole file is judged too.
2. `honest`: files of honest dialogues, judged by the validator's procedure, until there are `--honest` dialogues.
3. `cost`: CPU seconds of generating dialogues of three turns, and of validating them.

The model is random with 0.2 M parameters (`cost`: 2 M) and ends its messages often; the environment replies to any
message (`tests/kit/talking_family.py`). torch in float32 generates and judges; `--vllm float32` and `--vllm bfloat16`
measure vLLM in the numerics class of this machine, which needs `.tools/vllm` (`make tools`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.attack_tries import node
from benchmarks.ending import end_in_order
from benchmarks.numerics import CPU, PLACE, RemoteEngine
from benchmarks.validator import wilson
from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.registry import ATTACKS
from protocol.runtime.cpu_class import cpu_class
from protocol.verdicts import Outcome, ReasonCode
from rollouts.calibration.limits import RolloutCalibration
from rollouts.checks import EXACT_CHECKS, PREFILL_CHECKS, CheckedVersion, CheckInput, CheckOutcome, SlotFacts
from rollouts.checks.bounds import fits_model
from rollouts.checks.reward import compared_rows
from rollouts.checks.scoring import score_rows
from rollouts.engines.interface import Engine
from rollouts.engines.torch.engine import TorchEngine
from rollouts.files.samples import RolloutFile, Sample
from rollouts.models.policy import load_policy
from rollouts.precision import Arithmetic, Dtype
from rollouts.recipe import Recipe
from rollouts.recompute.interface import Recomputer
from rollouts.recompute.torch_recomputer import TorchRecomputer
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.recompute.vllm_recomputer import VllmRecomputer
from rollouts.sandbox import Sandboxes
from rollouts.verify.files import limits_of, with_evidence
from tests.kit.attack_harness import AttackHarness
from tests.kit.talking_family import RECIPE, registered, talking_version
from tests.kit.tiny_model import END
from tests.kit.vllm_engine import EngineProcess
from validator.audit.draw import RowDraw
from validator.examination.channel import Order
from validator.examination.interface import Conclusion
from validator.examination.model_cache import ModelCache
from validator.examination.procedure import Procedure
from validator.examination.reading import LimitedReader
from validator.examination.settings import ExaminerSettings
from validator.examination.vllm_cache import VllmCache

GROUPS = 16
"""Groups of a file; each has four dialogues."""
MOST_FILES = 50
"""The most files of an attack."""
HEADS: dict[str, Any] = {"num_attention_heads": 3, "num_key_value_heads": 1}
"""vLLM on a CPU has no attention for heads of 24 values."""
LARGER: dict[str, Any] = {
    "hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
"""Shape of the model of `cost`."""
VLLM = "0.32.0"
"""vLLM's version in `.tools/vllm`."""
TURNS = 3
"""Turns of the dialogues of `cost`, unless the environment ends them earlier."""


@dataclass(frozen=True, slots=True)
class Stand:
    """A version, a node and a verifier in one arithmetic."""

    version: CheckedVersion
    node: AttackHarness
    recomputer: Recomputer
    procedure: Procedure
    made_in: Arithmetic


@contextmanager
def open_stand(
    home: Path, own: Arithmetic | None, shape: dict[str, Any], *, recipe: Recipe = RECIPE
) -> Iterator[Stand]:
    """Opens a stand.

    Args:
        home: Folder that is made for its files.
        own: The class of vLLM; None for torch in float32.
        shape: Changes to the model's config.
        recipe: Recipe of the version.
    """
    home.mkdir()
    told = ExaminerSettings(home=home)
    cache = VllmCache(PLACE, budget=1 << 30)
    procedure = Procedure(
        reader=LimitedReader(Sandboxes(), most=told.most),
        models=ModelCache(CPU, budget=1 << 30),
        vllm=cache,
        calibration=RolloutCalibration.shipped(),
        dtype=None,
        margin=told.margin,
        scoring=told.scoring_budget,
    )
    if own is None:
        version = talking_version(home / "version", recipe, **shape)
        recomputer = TorchRecomputer(
            load_policy(version.folder, dtype=Dtype.FLOAT32, device=CPU), made_in=Dtype.FLOAT32
        )
        torch_engine: Engine = TorchEngine(dtype=Dtype.FLOAT32, max_batch=64)
        made_in = Arithmetic.parse("torch/float32")
        with AttackHarness(torch_engine, version.folder, history=(), home=home, node=node()) as made:
            yield Stand(version, made, recomputer, procedure, made_in)
        return
    recipe = recipe.model_copy(update={"arithmetic": (str(own),)})
    version = talking_version(home / "version", recipe, **shape)
    with EngineProcess(home / "log", device_class=own.device) as process, VllmProcess(PLACE, own) as verifier:
        process.open(dtype=own.dtype, max_batch=64)
        verifier.load(version.folder, version=version.digest)
        with AttackHarness(RemoteEngine(process, own), version.folder, history=(), home=home, node=node()) as made:
            again = VllmRecomputer(verifier, folder=version.folder, version=version.digest)
            yield Stand(version, made, again, procedure, own)
    cache.close()


def attacks(console: Console, stand: Stand, *, tries: int) -> None:
    """Prints the table of attacks."""
    table = Table(title=f"{stand.made_in}: forged dialogues, each judged alone")
    for column in ("attack", "forged", "caught", "share, 95 % interval", "reasons", "whole files: verdicts"):
        table.add_column(column)
    for attack in ATTACKS.values():
        if not attack.dialogues:
            continue
        forged, caught = 0, 0
        reasons, verdicts = Counter[str](), Counter[str]()
        trick = attack.trick()
        for index in range(MOST_FILES):
            if forged >= tries:
                break
            grant = stand.node.grant(index, groups=GROUPS)
            toolkit = stand.node.toolkit()
            file = trick.make(toolkit, grant)
            honest = toolkit.file(grant)
            if file is None:
                continue
            facts = SlotFacts.of_lease(grant.lease.lease, domain=grant.lease.domain, beacon=grant.beacon)
            places = [
                row
                for row, (one, other) in enumerate(zip(file.samples, honest.samples, strict=True))
                if _is_forged(attack.name, one, other)
            ][: tries - forged]
            found = _reasons(stand, file, facts, places)
            forged += len(places)
            caught += sum(reason is not None for reason in found)
            reasons.update(reason.name for reason in found if reason is not None)
            if places:
                verdicts[_whole(stand, file, index)] += 1
        low, high = wilson(caught, forged)
        table.add_row(
            attack.name, str(forged), str(caught), f"{caught / max(1, forged):.1%} ({low:.1%} to {high:.1%})",
            ", ".join(f"{name} {count}" for name, count in reasons.most_common()),
            ", ".join(f"{name} {count}" for name, count in verdicts.most_common()),
        )  # fmt: skip
        console.log(f"{attack.name}: {caught} of {forged}")
    console.print(table)


def _is_forged(attack: str, one: Sample, honest: Sample) -> bool:
    """Returns whether a dialogue is not the honest one of its sample; proofs may differ by rounding."""
    if one.output_tokens.tolist() != honest.output_tokens.tolist() or len(one.turns) != len(honest.turns):
        return True
    if any(mine.given.tolist() != own.given.tolist() for mine, own in zip(one.turns, honest.turns, strict=True)):
        return True
    last = one.turns[-1].drawn
    return attack == "retokenised-history" and END in one.output_tokens[:-last]  # its text lacks the end token


def _reasons(stand: Stand, file: RolloutFile, facts: SlotFacts, rows: list[int]) -> list[ReasonCode | None]:
    """Returns, for each of these rows as a file of its own, the reason why it fails; None if it passes."""
    limits = limits_of(
        file, stand.version, calibration=RolloutCalibration.shipped(), verifier=stand.recomputer.arithmetic
    )
    case = CheckInput.of(file, facts, stand.version, limits=limits)
    alone = {row: replace(case, file=RolloutFile(file.header, (file.samples[row],))) for row in rows}
    exact = [check for check in EXACT_CHECKS if check.name in {"bounds", "termination"}]
    found: dict[int, ReasonCode | None] = {}
    for row, one in alone.items():
        failed = [finding for check in exact for finding in check.judge(one).findings]
        found[row] = failed[0].reason if failed else None
    computed = [row for row in rows if found[row] is None and fits_model(alone[row])]
    evidence = stand.recomputer.evidence(file, case.with_draws(computed))
    for row in computed:
        one = replace(alone[row], evidence={0: evidence[row]})
        results = [check.judge(one) for check in PREFILL_CHECKS]
        # limits of whole files are for more than one row of a few tokens
        failed = [finding for result in results for finding in result.findings if finding.row is not None]
        failed = failed or [finding for result in compared_rows(one, score_rows(one)) for finding in result.findings]
        found[row] = failed[0].reason if failed else None
    return [found[row] for row in rows]


def _whole(stand: Stand, file: RolloutFile, index: int) -> str:
    """Returns the verdict of the validator's procedure on a whole file."""
    work = stand.node.hand_in(_Made(file), stand.node.grant(index, groups=GROUPS))
    assert work is not None
    order = Order(facts=work.facts, file=work.path, folder=stand.version.folder, draw=RowDraw(seed=None, share=1.0))
    found = stand.procedure.examine(order, is_copy=lambda _: False)
    work.path.unlink()
    if isinstance(found, Conclusion):
        return found.outcome.name if found.outcome is Outcome.ACCEPTED else f"{found.outcome.name} {found.reason.value}"
    return f"not judged: {found.code}"


class _Made(Trick):
    """Hands in an existing file."""

    def __init__(self, file: RolloutFile) -> None:
        self._file = file

    def make(self, *_: object) -> RolloutFile:
        return self._file


def honest(console: Console, stand: Stand, *, wanted: int) -> None:
    """Prints how many honest files passed: by the validator's procedure, or in a class by all checks of their content.

    The procedure judges only classes of which this release has a recording; the class of this machine may be another.
    """
    verdicts, judged, turns, index = Counter[str](), 0, 0, 1000
    while judged < wanted:
        grant = stand.node.grant(index, groups=GROUPS)
        file = stand.node.toolkit().file(grant)
        if stand.made_in.is_class:
            facts = SlotFacts.of_lease(grant.lease.lease, domain=grant.lease.domain, beacon=grant.beacon)
            failed = _failed(stand, file, facts)
            verdicts[", ".join(failed) or "passed"] += 1
        else:
            verdicts[_whole(stand, file, index)] += 1
        judged += len(file.samples)
        turns += sum(len(sample.turns) for sample in file.samples)
        index += 1
    console.print(f"{stand.made_in}: {judged} honest dialogues with {turns} turns, files: {dict(verdicts)}")


def _failed(stand: Stand, file: RolloutFile, facts: SlotFacts) -> list[str]:
    """Returns the names of the checks that did not pass."""
    arithmetic = stand.recomputer.arithmetic
    limits = limits_of(file, stand.version, calibration=RolloutCalibration.shipped(), verifier=arithmetic)
    case = CheckInput.of(file, facts, stand.version, limits=limits)
    case = with_evidence(case, stand.recomputer)
    results = [check.judge(case) for check in (*EXACT_CHECKS, *PREFILL_CHECKS)]
    results += compared_rows(case, score_rows(case))
    return [one.check for one in results if one.state is not CheckOutcome.PASSED]


def cost(console: Console, home: Path, *, own: Arithmetic | None) -> None:
    """Prints the cost of generating and of validating dialogues of three turns."""
    assert RECIPE.dialogue is not None
    dialogue = RECIPE.dialogue.model_copy(update={"turns": TURNS})
    sampling = RECIPE.sampling.model_copy(update={"max_new_tokens": 120})
    recipe = RECIPE.model_copy(update={"dialogue": dialogue, "sampling": sampling})
    clock = time.process_time if own is None else time.perf_counter  # vLLM computes in other processes
    with open_stand(home, own, LARGER, recipe=recipe) as stand:
        times: list[tuple[float, float]] = []
        for index in range(6):
            grant = stand.node.grant(index, groups=GROUPS)
            began = clock()
            file = stand.node.toolkit().file(grant)
            made = clock() - began
            three = [row for row, sample in enumerate(file.samples) if len(sample.turns) == TURNS]
            facts = SlotFacts.of_lease(grant.lease.lease, domain=grant.lease.domain, beacon=grant.beacon)
            case = CheckInput.of(file, facts, stand.version)
            began = clock()
            stand.recomputer.evidence(file, case.with_draws(range(len(file.samples))))
            compared_rows(case, score_rows(case))
            times.append((made, clock() - began))
        best = min(one[0] for one in times[1:]), min(one[1] for one in times[1:])
        unit = "CPU s" if own is None else "s"
        console.print(
            f"{stand.made_in}: {len(file.samples)} dialogues at once, {len(three)} of them of {TURNS} turns: "
            f"generated in {best[0]:.2f} {unit}, validated in {best[1]:.2f} {unit} (least of {len(times) - 1}): "
            f"{best[0] / best[1]:.1f} times as cheap"
        )


def class_here(dtype: Dtype) -> Arithmetic:
    """Returns the class in which vLLM computes on this machine by default."""
    device = cpu_class()
    if device is None:
        raise SystemExit("this processor has no numerics class")
    return Arithmetic.parse(f"vllm-{VLLM}/{dtype.value}/{device}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["attacks", "honest", "cost"])
    parser.add_argument("--tries", type=int, default=100, help="forged dialogues of each attack")
    parser.add_argument("--honest", type=int, default=1000, help="honest dialogues")
    parser.add_argument("--vllm", type=Dtype, choices=list(Dtype), help="measure vLLM in this type, not torch")
    told = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=200)
    own = None if told.vllm is None else class_here(told.vllm)
    with registered(), tempfile.TemporaryDirectory(prefix="muster-dialogues-") as room:
        if told.only in {None, "attacks", "honest"}:
            with open_stand(Path(room) / "stand", own, HEADS) as stand:
                if told.only in {None, "honest"}:
                    honest(console, stand, wanted=told.honest)
                if told.only in {None, "attacks"}:
                    attacks(console, stand, tries=told.tries)
        if told.only in {None, "cost"}:
            cost(console, Path(room) / "cost", own=own)


if __name__ == "__main__":
    end_in_order()
    main()
