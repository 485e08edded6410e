"""Measures noise, proofs and replay with a real vocabulary (49,152 words); `python -m benchmarks.real_vocabulary`.

Generation, and what a validator does with the same answers, are measured in turns in one process with one thread, and
medians of CPU time are compared. Draws, noise and replay are also measured alone, on the logits of the same answers, so
that their shares are visible. A draw computes the noise of a few candidates; "all noise" is the cost of noise for every
word. Groups of 8 answers share a prompt.

`--model FOLDER` uses a pretrained model, such as the folder that `muster devnet --preset smollm2` makes; by default the
model has the shape of SmolLM2-135M and random weights. Random weights give nearly flat logits, for which a draw can
exclude fewer tokens.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.models import random_model
from benchmarks.rollout_files import as_file
from protocol.identifiers import ZERO_DIGEST
from rollouts.checks import Draws, gather
from rollouts.engines.interface import Completion, Engine, SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.environments import load_environment
from rollouts.models.policy import Policy, load_policy
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.prefill import PrefillItem, prefill
from rollouts.sampling.noise import noise, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import gaps_of_rows
from rollouts.sampling.seeded_draw import draw_seeded

EACH = 8
SEED = b"\x01" * 32
SHAPE = "deep, 134 M"


@dataclass(slots=True)
class Costs:
    """CPU seconds per round of each measured work, in the order of measurement."""

    tokens: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, name: str, work: Callable[[], object]) -> None:
        """Runs the work once and records its CPU time."""
        began = time.process_time()
        work()
        self.seconds.setdefault(name, []).append(time.process_time() - began)

    def per_token(self, name: str) -> float:
        """Returns the median, in milliseconds per token."""
        return 1e3 * statistics.median(self.seconds[name]) / self.tokens


def prompts_of(folder: Path, count: int) -> list[tuple[int, ...]]:
    """Returns prompts of the arithmetic environment; of a model without words, arbitrary tokens."""
    tokenizer = FolderTokenizer(folder)
    if not tokenizer.has_chat_template:
        return [(*range(2, 40), 50 + number) for number in range(count)]
    environment = load_environment("arithmetic", options={"form": "question", "digits": 2})
    return [tuple(tokenizer.encode(environment.prompt(number).text, chat=True)) for number in range(count)]


def measure(folder: Path, policy: Policy, engine: Engine, *, answers: int, tokens: int, rounds: int) -> Costs:
    """Measures all works for one number of answers."""
    parameters = SamplingParameters(max_new_tokens=tokens)
    prompts = prompts_of(folder, -(-answers // EACH))
    requests = [
        SampleRequest(sample=sample, prompt_tokens=prompts[sample // EACH], seed=SEED) for sample in range(answers)
    ]

    def generate(*, with_proofs: bool) -> list[Completion]:
        return list(engine.generate(requests, parameters, with_proofs=with_proofs))

    file = as_file(requests, generate(with_proofs=True), engine=EngineName.TORCH, dtype=engine.dtype)
    items = [PrefillItem(sample.prompt_tokens, sample.output_tokens) for sample in file.samples]
    streams = [stream(SEED, sample.sample) for sample in file.samples]
    costs = Costs(tokens=sum(len(sample.output_tokens) for sample in file.samples))
    rows = dict.fromkeys(range(answers), Draws(seed=SEED, parameters=parameters))
    for _ in range(rounds):
        costs.measure("generated without proofs", lambda: generate(with_proofs=False))
        costs.measure("generated with proofs", lambda: generate(with_proofs=True))
        costs.measure("checked", lambda: gather(policy, file, rows))
        costs.measure("prefill", lambda: [part.states for part in prefill(policy, items)])
        _measure_draws(costs, policy, items, streams, parameters)
    return costs


def _measure_draws(
    costs: Costs,
    policy: Policy,
    items: list[PrefillItem],
    streams: list[tuple[int, int, int, int]],
    parameters: SamplingParameters,
) -> None:
    """Measures noise, draw and replay alone, on the logits of every pass of a prefill."""
    spent = dict.fromkeys(("noise", "draw", "replay"), 0.0)
    for part in prefill(policy, items):
        places = [(span.answer, position) for span in part.spans for position in range(span.start, span.stop)]
        keys = row_keys([streams[answer] for answer, _ in places], [position for _, position in places])
        recorded = [int(items[answer].output[position]) for answer, position in places]
        logits = part.logits.float()
        made = Costs()
        made.measure("noise", lambda keys=keys: noise(keys, policy.facts.vocabulary))  # type: ignore[misc]
        made.measure("draw", lambda logits=logits, keys=keys: draw_seeded(logits, keys, parameters))  # type: ignore[misc]
        made.measure(
            "replay",
            lambda logits=logits, recorded=recorded, keys=keys: gaps_of_rows(logits, recorded, keys, parameters),  # type: ignore[misc]
        )
        for name in spent:
            spent[name] += made.seconds[name][0]
    for name, seconds in spent.items():
        costs.seconds.setdefault(name, []).append(seconds)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Costs of noise, proofs and replay with 49,152 words.")
    parser.add_argument("--model", type=Path, default=None, help="folder of a pretrained model")
    parser.add_argument("--answers", default="1,16,64", help="numbers of answers, separated by commas")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of an answer")
    parser.add_argument("--dtypes", default=",".join(Dtype), help="data types, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the median is taken")
    told = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        folder = told.model or random_model(Path(home) / "model", SHAPE)
        for dtype in map(Dtype, told.dtypes.split(",")):
            Console(width=140).print(_table(folder, dtype, told))


def _table(folder: Path, dtype: Dtype, told: argparse.Namespace) -> Table:
    name = SHAPE if told.model is None else told.model.name
    table = Table(title=f"{name}, {dtype.value}, one thread: CPU ms a token, medians of {told.rounds} rounds in turns")
    columns = ("generated", "with proofs", "of it draws", "all noise", "checked", "of it prefill", "replay")
    for column in ("answers", "tokens", *columns, "generated / checked"):
        table.add_column(column, justify="right")
    policy = load_policy(folder, dtype=dtype, device=torch.device("cpu"))
    for answers in map(int, told.answers.split(",")):
        engine = open_engine(EngineName.TORCH, dtype=dtype, device="cpu", max_batch=answers)
        engine.load(folder, version=ZERO_DIGEST)
        costs = measure(folder, policy, engine, answers=answers, tokens=told.tokens, rounds=told.rounds)
        engine.close()
        works = ("generated without proofs", "generated with proofs", "draw", "noise", "checked", "prefill", "replay")
        ratio = costs.per_token("generated with proofs") / costs.per_token("checked")
        cells = (f"{costs.per_token(work):.2f}" for work in works)
        table.add_row(str(answers), str(costs.tokens), *cells, f"{ratio:.1f}x")
    return table


if __name__ == "__main__":
    end_in_order()
    main()
