"""Measures prompts and scores of every reasoning-gym dataset; `python -m benchmarks.reasoning_gym`.

Every dataset runs with its default configuration in one sandbox, one job at a time: prompts made, the datasets' own
answers scored, and a wrong answer scored. With `--markdown`, prints the table of docs/reasoning-gym.md instead of a
summary. `MUSTER_BENCHMARK_ITEMS` is the number of prompts per dataset.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
import re
import sys
import textwrap
import time
from dataclasses import dataclass
from importlib.util import find_spec

from pydantic import JsonValue
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from rollouts.environments import load_environment
from rollouts.environments.gym.datasets import NAMES, REFUSED
from rollouts.environments.gym.environment import MODULE, GymOptions, prepared
from rollouts.sandbox import Job, JobKind, Sandboxes, SandboxSettings

ITEMS = int(os.environ.get("MUSTER_BENCHMARK_ITEMS", "10"))
_LONGEST_EXAMPLE = 90
_GRADED = re.compile(r"score|exp\(")
"""Calls in a scorer that return values between 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of one dataset; times in seconds."""

    name: str
    example: str
    set_up: float
    """For making the dataset and its first prompt, in the sandbox's server."""
    made: float
    """Per prompt."""
    made_cpu: float
    """CPU time of the job per prompt, the fork included."""
    scored: float
    """Per score of a right answer; NaN if there is none."""
    right: float
    """Mean reward of the dataset's own answers; NaN if it has none."""
    wrong: float
    """Mean reward of the answer `nothing`."""


def measure(name: str, sandboxes: Sandboxes) -> Measured:
    """Makes and scores the first prompts of a dataset."""
    options: dict[str, JsonValue] = {"dataset": name, "instruct": False}
    began = time.perf_counter()
    environment = load_environment("reasoning-gym", options=options, sandboxes=sandboxes)
    set_up = time.perf_counter() - began
    dataset = prepared(GymOptions.model_validate(options))
    jobs = [Job(module=MODULE, payload={"index": index}, needs=dataset) for index in range(ITEMS)]
    began = time.perf_counter()
    cpu = sum(sandboxes.run(JobKind.GYM, job).cpu.total_seconds() for job in jobs) / ITEMS
    made = (time.perf_counter() - began) / ITEMS
    prompts = [environment.prompt(index) for index in range(ITEMS)]
    answers = [(prompt, environment.demonstration(prompt)) for prompt in prompts]
    began = time.perf_counter()
    rewards = [environment.score(prompt, answer, finished=True).task for prompt, answer in answers if answer]
    scored = (time.perf_counter() - began) / max(len(rewards), 1)
    wrong = [environment.score(prompt, "<answer>nothing</answer>", finished=True).task for prompt in prompts]
    return Measured(
        name=name,
        example=_one_line(prompts[0].text),
        set_up=set_up,
        made=made,
        made_cpu=cpu,
        scored=scored if rewards else math.nan,
        right=sum(rewards) / len(rewards) if rewards else math.nan,
        wrong=sum(wrong) / ITEMS,
    )


def _one_line(text: str) -> str:
    shown = re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("`", "'")
    return shown if len(shown) <= _LONGEST_EXAMPLE else shown[: _LONGEST_EXAMPLE - 1] + "…"


def reward_kinds() -> dict[str, str]:
    """Returns `binary` or `partial` for every dataset, by the numbers in the source of its scorer."""
    from rollouts.sandbox.inside.gym import stand_ins  # noqa: PLC0415 - replaces modules of this process

    stand_ins.install()
    from reasoning_gym.factory import DATASETS  # noqa: PLC0415 - needs the stand-ins

    return {name: _kind(made) for name, (made, _) in DATASETS.items()} | dict.fromkeys(
        ("coin_flip", "puzzle24"), "binary"
    )


def _kind(made: type) -> str:
    source = textwrap.dedent(inspect.getsource(made.score_answer))  # type: ignore[attr-defined]  # of an untyped library
    tree = ast.parse(source)
    body = [node for node in ast.walk(tree) if isinstance(node, ast.Return | ast.Assign | ast.AugAssign)]
    for node in body:
        value = node.value
        for inner in ast.walk(value) if value is not None else ():
            if isinstance(inner, ast.Constant) and isinstance(inner.value, float) and inner.value not in {0.0, 1.0}:
                return "partial"
            if isinstance(inner, ast.Div | ast.Pow) or (
                isinstance(inner, ast.Call) and _GRADED.search(ast.unparse(inner))
            ):
                return "partial"
    return "binary"


def markdown(rows: list[Measured]) -> None:
    """Prints the table of the documentation."""
    kinds = reward_kinds()
    by_name = {row.name: row for row in rows}
    print("| dataset | reward | CPU ms per prompt | beginning of prompt 0, or why the dataset is refused |")
    print("|---|---|---|---|")
    for name in sorted({*NAMES, *REFUSED} - {"composite"}):
        if name in REFUSED:
            print(f"| `{name}` | refused | | {REFUSED[name]} |")
        else:
            row = by_name[name]
            print(f"| `{name}` | {kinds[name]} | {1000 * row.made_cpu:.0f} | {row.example} |")


def main() -> None:
    """Prints the table."""
    if find_spec("reasoning_gym") is None:
        print("reasoning-gym is not installed: pip install --no-deps -r deploy/locks/reasoning-gym.lock")
        return
    sandboxes = Sandboxes(SandboxSettings(most=1))
    chosen = [name for name in NAMES if name in sys.argv[1:]] or list(NAMES)
    rows = [measure(name, sandboxes) for name in chosen]
    sandboxes.close()
    if "--markdown" in sys.argv:
        markdown(rows)
        return
    table = Table("dataset", "set-up ms", "prompts/s", "scores/s", "own answer", "wrong answer", title="reasoning-gym")
    for row in rows:
        table.add_row(
            row.name,
            f"{1000 * row.set_up:.0f}",
            f"{1 / row.made:,.0f}",
            f"{1 / row.scored:,.0f}",
            f"{row.right:.2f}",
            f"{row.wrong:.2f}",
        )
    made = sorted(row.made for row in rows)
    scored = sorted(row.scored for row in rows if not math.isnan(row.scored))
    Console(width=120).print(table)
    print(
        f"{len(rows)} datasets, {ITEMS} prompts each: median {1 / made[len(made) // 2]:,.0f} prompts/s and "
        f"{1 / scored[len(scored) // 2]:,.0f} scores/s; slowest {1 / made[-1]:,.1f} and {1 / scored[-1]:,.1f}"
    )


if __name__ == "__main__":
    end_in_order()
    main()
