"""Proofs equal those of the format's own library byte for byte, and so do the statistics of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rollouts import toploc

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
COMPARISONS = [(vector, case) for vector in VECTORS["verify"] for case in vector["cases"]]


def activations(vector: dict[str, Any], hexadecimal: str) -> torch.Tensor:
    """Decodes little-endian bfloat16 values, rows by hidden."""
    raw = torch.frombuffer(bytearray.fromhex(hexadecimal), dtype=torch.bfloat16)
    return raw.view(vector["rows"], vector["hidden"])


@pytest.mark.parametrize("vector", VECTORS["points"], ids=lambda vector: f"{vector['k']} points, {vector['note']}")
def test_points_encode_to_the_published_bytes(vector: dict[str, Any]) -> None:
    assert toploc.encode(vector["x"], vector["y"]).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS["verify"], ids=lambda vector: f"{vector['rows']} x {vector['hidden']}")
def test_states_are_proved_by_the_published_bytes(vector: dict[str, Any]) -> None:
    states = activations(vector, vector["activations"])
    built = toploc.build(states, interval=vector["decode_batching_size"], top_k=vector["topk"])
    assert [proof.hex() for proof in built] == vector["proofs"]


@pytest.mark.parametrize(("vector", "case"), COMPARISONS, ids=lambda value: str(value.get("rel_noise", "")))
def test_a_comparison_gives_the_published_statistics(vector: dict[str, Any], case: dict[str, Any]) -> None:
    states = activations(vector, case["activations"])
    proofs = [bytes.fromhex(proof) for proof in vector["proofs"]]
    results = toploc.verify(states, proofs, interval=vector["decode_batching_size"], top_k=vector["topk"])
    figures = [[result.exponent_mismatches, result.mantissa_mean, result.mantissa_median] for result in results]
    # The library has two code paths with different medians: of an even number of values one takes the upper of the
    # two middle values, the other their mean, which is the usual definition. Ours is the latter.
    assert figures == case["list_path"]
    assert [row[:2] for row in figures] == [row[:2] for row in case["tensor_path"]]
