"""Section 3: the size and cost of deltas between two consecutive steps of a real optimiser on a real model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.shardcast_run.broadcast import digest
from shardcast.delta import apply_delta, build_delta

RATES = (1e-6, 1e-5, 1e-4)
WARM = 20
"""Steps before the two that are compared, because Adam's first steps have another size than later ones."""
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One learning rate."""

    rate: float
    size: int
    delta: int
    changed: float
    """Share of values that differ."""
    build_mb_s: float
    apply_mb_s: float


def measure(folder: Path, *, hidden: int, layers: int, vocabulary: int) -> list[Row]:
    """Trains a Llama of this shape on random tokens, once for each learning rate."""
    torch.set_num_threads(1)
    return [_measure(folder, rate, hidden, layers, vocabulary) for rate in RATES]


def _measure(folder: Path, rate: float, hidden: int, layers: int, vocabulary: int) -> Row:
    old, new, delta = folder / "old.safetensors", folder / "new.safetensors", folder / "delta"
    train(old, new, rate=rate, hidden=hidden, layers=layers, vocabulary=vocabulary)
    size = new.stat().st_size
    built = build_delta(base=old, target=new, delta=delta)
    build_s = _best(lambda: build_delta(base=old, target=new, delta=delta))
    again = folder / "again"

    def apply() -> None:
        again.unlink(missing_ok=True)
        apply_delta(base=old, delta=delta, target=again, size=size)

    apply_s = _best(apply)
    if digest(again) != digest(new):
        raise RuntimeError("a delta did not give the file that it was made of")
    return Row(
        rate=rate,
        size=size,
        delta=built.size,
        changed=built.changed / built.values,
        build_mb_s=size / 1e6 / build_s,
        apply_mb_s=size / 1e6 / apply_s,
    )


def train(old: Path, new: Path, *, rate: float, hidden: int, layers: int, vocabulary: int) -> None:
    """Trains with AdamW on fp32 weights; writes two consecutive steps in bf16, as a trainer publishes them."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
    )
    model = LlamaForCausalLM(shape)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(WARM + 2):
        tokens = torch.randint(0, vocabulary, (4, 64))
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step >= WARM:
            weights = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
            save_file(weights, old if step == WARM else new)


def show(rows: list[Row]) -> None:
    """Prints the table and the claims."""
    print(f"\ndelta between two consecutive AdamW steps of a llama, {rows[0].size / 2**20:.0f} MiB in bf16, one thread")
    print(f"{'learning rate':>14}{'changed':>10}{'delta MiB':>11}{'of full':>9}{'build MB/s':>12}{'apply MB/s':>12}")
    for row in rows:
        print(
            f"{row.rate:>14.0e}{row.changed:>10.2%}{row.delta / 2**20:>11.2f}{row.delta / row.size:>9.2%}"
            f"{row.build_mb_s:>12.0f}{row.apply_mb_s:>12.0f}"
        )
    print(f"at 1e-6: {rows[0].delta / rows[0].size:.2%} of the full bytes (claimed: at most 5 %)")


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
