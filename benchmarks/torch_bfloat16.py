"""Measures whether torch in bfloat16 computes the same bits in generation and in prefill, on this machine's CPU.

    python -m benchmarks.torch_bfloat16 [--model FOLDER] [--answers N] [--length N]

1. `products`: share of values of one matrix product that change with the number of rows computed together.
2. `answers`: the torch engine generates in batches of 64, 7 and 1, and a prefill recomputes the answers. Both run with
   the usual attention, and with each token as a sequence of one query (as numerics classes of vLLM do), where every
   answer of the prefill is in a row of its own. Every differing log-probability and draw is counted.

Results in bfloat16 depend on torch's kernel for matrix products, which is oneDNN's only on processors with bfloat16
instructions (decision 83).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from benchmarks.ending import end_in_order
from benchmarks.numerics import SEED, SHAPES, differing, file_of, requests_of
from protocol.identifiers import ZERO_DIGEST
from rollouts.checks import Draws, gather
from rollouts.engines.interface import Completion, SampleRequest
from rollouts.engines.torch.engine import TorchEngine
from rollouts.files.samples import RolloutFile
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.prefill import packing
from rollouts.sampling.parameters import SamplingParameters
from tests.kit.tiny_model import tiny_folder

CPU = torch.device("cpu")
_sdpa: Any = sdpa_attention_forward  # transformers annotates its options too narrowly
ROWS = 256
PRODUCTS = ((128, 384), (384, 128), (128, 8192), (576, 1536), (1536, 576))
"""Input and output widths: those of the models of `benchmarks.numerics`, and of SmolLM2-135M."""
SEEN = 16
"""Attention sees a multiple of this many positions, as in the engine's cache."""
ONE_QUERY = "one_query"


def one_query(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """Computes attention with one query per kernel call and row; see transformers' `sdpa_attention_forward`."""
    rows, _, tokens, _ = query.shape
    if tokens == 1:
        one: torch.Tensor = _sdpa(module, query, key, value, attention_mask, **options)[0]
        return one, None
    seen = key.shape[2]
    room = -(-seen // SEEN) * SEEN
    if attention_mask is None:
        places = torch.arange(seen)
        attention_mask = (places[None, :] <= (places[seen - tokens :])[:, None])[None, None]
    mask = torch.nn.functional.pad(attention_mask.expand(rows, 1, tokens, seen), (0, room - seen))
    keys, values = (torch.nn.functional.pad(each, (0, 0, 0, room - seen)) for each in (key, value))
    parts = []
    for row in range(rows):
        queries = query[row].transpose(0, 1)[:, :, None]
        own = (each[row : row + 1].expand(tokens, -1, -1, -1) for each in (keys, values))
        out, _ = _sdpa(module, queries, *own, mask[row, 0][:, None, None], **options)
        parts.append(out[:, 0])
    return torch.stack(parts), None


@contextmanager
def attention_of(policy: Policy, name: str) -> Iterator[None]:
    """Within the context, a policy computes attention with a registered function.

    With `ONE_QUERY`, prefills also give each answer a row of its own: where answers share a row, the keys of other
    answers lie between an answer's own keys, so that sums over keys have another order than in generation.
    """
    config = policy._model.config
    before = config._attn_implementation, packing.LEAST_BEHIND_PROMPT
    config._attn_implementation = name
    if name == ONE_QUERY:
        packing.LEAST_BEHIND_PROMPT = 0
    try:
        yield
    finally:
        config._attn_implementation, packing.LEAST_BEHIND_PROMPT = before


def products(console: Console) -> None:
    """Prints how matrix products depend on the number of rows."""
    table = Table(title=f"values of one product that change with the number of rows; against {ROWS} rows, one thread")
    for column in ("widths", "type", *(f"{rows} rows" for rows in (1, 7, 16, 64)), "µs per row of 1", f"of {ROWS}"):
        table.add_column(column)
    functional = torch.nn.functional
    for inputs, outputs in PRODUCTS:
        for dtype in (torch.bfloat16, torch.float32):
            given, weight = torch.randn(ROWS, inputs).to(dtype), (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
            whole = functional.linear(given, weight)
            shares = []
            for rows in (1, 7, 16, 64):
                last = ROWS - ROWS % rows
                parts = torch.cat([functional.linear(given[at : at + rows], weight) for at in range(0, last, rows)])
                shares.append(f"{(parts != whole[:last]).double().mean().item():.2%}")
            times = [_best(given[:rows], weight) / rows * 1e6 for rows in (1, ROWS)]
            name = str(dtype).removeprefix("torch.")
            table.add_row(f"{inputs} to {outputs}", name, *shares, *(f"{one:.1f}" for one in times))
    console.print(table)


def _best(given: torch.Tensor, weight: torch.Tensor) -> float:
    found = []
    for _ in range(7):
        began = time.perf_counter()
        torch.nn.functional.linear(given, weight)
        found.append(time.perf_counter() - began)
    return min(found)


def answers(console: Console, folder: Path, dtype: Dtype, *, count: int, length: int) -> None:
    """Prints the differences between generations, and between generation and prefill."""
    arithmetic = Arithmetic(engine=EngineName.TORCH, dtype=dtype)
    table = Table(title=f"{folder.name} in {dtype.value}: {count} answers of at most {length} tokens")
    for column in ("attention", "batch", "tokens", "drawn otherwise than in 64"):
        table.add_column(column)
    for column in ("log-probabilities differ from prefill", "draws", "prefill, CPU s"):
        table.add_column(column)
    policy = load_policy(folder, dtype=dtype, device=CPU)
    requests = requests_of(policy.facts.vocabulary, count)
    parameters = SamplingParameters(max_new_tokens=length)
    for name in ("sdpa", ONE_QUERY):
        first: dict[int, Completion] = {}
        for batch in (64, 7, 1):
            drawn = generated(folder, dtype, requests, parameters, batch=batch, attention=name)
            first = first or drawn
            other = sum(not same(drawn[one.sample], first[one.sample]) for one in requests)
            file = file_of(requests, drawn, arithmetic)
            found, seconds = compared(policy, file, parameters, attention=name)
            table.add_row(
                name, str(batch), f"{found['tokens']:,}", f"{other} answers", f"{found['log-probabilities']:,}",
                f"{found['draws']:,}", f"{seconds:.2f}",
            )  # fmt: skip
    console.print(table)


def generated(
    folder: Path,
    dtype: Dtype,
    requests: list[SampleRequest],
    parameters: SamplingParameters,
    *,
    batch: int,
    attention: str,
) -> dict[int, Completion]:
    """Generates answers with the torch engine."""
    engine = TorchEngine(dtype=dtype, device=CPU, max_batch=batch)
    engine.load(folder, version=ZERO_DIGEST)
    policy = engine._policy
    if policy is None:
        raise RuntimeError("the engine has no policy")
    with attention_of(policy, attention):
        return {one.sample: one for one in engine.generate(requests, parameters, with_proofs=True)}


def same(one: Completion, other: Completion) -> bool:
    """Returns True if tokens and log-probabilities of two answers are equal."""
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.logprobs, other.logprobs)


def compared(
    policy: Policy, file: RolloutFile, parameters: SamplingParameters, *, attention: str
) -> tuple[dict[str, int], float]:
    """Prefills a file; returns the counts of differences and the CPU seconds."""
    with attention_of(policy, attention):
        began = time.process_time()
        rows = dict.fromkeys(range(len(file.samples)), Draws(seed=SEED, parameters=parameters))
        evidence = gather(policy, file, rows)
        return differing(file, evidence), time.process_time() - began


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model of `answers`; default: one of 2 M parameters")
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    told = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    AttentionInterface.register(ONE_QUERY, one_query)
    AttentionMaskInterface.register(ONE_QUERY, sdpa_mask)
    console = Console(width=150)
    products(console)
    with tempfile.TemporaryDirectory() as home:
        folder = told.model or tiny_folder(
            Path(home) / "2 M", kind="llama", num_attention_heads=2, num_key_value_heads=2,
            max_position_embeddings=2048, initializer_range=0.1, **SHAPES["2 M"],
        )  # fmt: skip
        for dtype in (Dtype.BFLOAT16, Dtype.FLOAT32):
            answers(console, folder, dtype, count=told.answers, length=told.length)


if __name__ == "__main__":
    end_in_order()
    main()
