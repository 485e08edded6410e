"""Evidence from one prefill per row: compared proofs, replayed draws and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from rollouts.files.samples import RolloutFile, Sample
from rollouts.models.policy import Policy
from rollouts.prefill import AnswerSpan, PrefillItem, PrefillRows, prefill
from rollouts.sampling.likelihood import surprise
from rollouts.sampling.noise import row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import Gaps, gaps_of_rows
from rollouts.sampling.sampler import scale
from rollouts.sampling.softmax import Softmax, weigh
from rollouts.toploc import ProofResult, verify_rows
from rollouts.turns import drawn_places

_GAPS = tuple(field.name for field in fields(Gaps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Seed and sampling parameters of a row, which with its sample number decide the draws.

    Args:
        seed: 32 bytes; None if unknown.
        parameters: Sampling parameters.
    """

    seed: bytes | None
    parameters: SamplingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEvidence:
    """Results of the verifier's own computation of one row.

    Args:
        proofs: One result per interval.
        logprobs: float32 [T], the verifier's log-probabilities of the recorded tokens.
        gaps: The replay of the row's draws; None if the seed is unknown.
        excess: float32 [T], log-probabilities minus the expected log-probability of a draw
            (`rollouts.sampling.likelihood`); None if not measured.
        variance: float32 [T], variance of a draw's log-probability; None if not measured.
    """

    proofs: tuple[ProofResult, ...]
    logprobs: NDArray[np.float32]
    gaps: Gaps | None
    excess: NDArray[np.float32] | None = None
    variance: NDArray[np.float32] | None = None

    def same_bits(self, other: RowEvidence) -> bool:
        """Returns True if log-probabilities, draws and states are equal to the bit.

        `excess` and `variance` are not compared: they are sums over the vocabulary outside the engine.
        """
        if self.proofs != other.proofs or self.logprobs.tobytes() != other.logprobs.tobytes():
            return False
        if self.gaps is None or other.gaps is None:
            return self.gaps is other.gaps
        ours, theirs = self.gaps, other.gaps
        pairs = ((ours.gaps, theirs.gaps), (ours.outside, theirs.outside), (ours.mismatches, theirs.mismatches))
        return all(one.tobytes() == another.tobytes() for one, another in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpread:
    """Differences between the verifier's own passes over one row, which are caused by rounding alone.

    Args:
        logprobs: float32 [T], the largest difference from the first pass at each token.
        deviations: float32 [T], for each token the largest difference between the replay deviation of the first pass
            and that of another pass; zeros if the seed is unknown.
        distance: Mean difference of the row's proofs, in units of the last place.
        distance_worst: Difference of the proof that differs most.
    """

    logprobs: NDArray[np.float32]
    deviations: NDArray[np.float32]
    distance: float
    distance_worst: float

    @classmethod
    def between(cls, first: RowEvidence, others: Sequence[RowEvidence]) -> Self:
        """Returns the largest differences of other passes from the first."""
        zeros = np.zeros_like(first.logprobs)
        logprobs, deviations = zeros, zeros
        distances = np.zeros(len(first.proofs))
        for other in others:
            logprobs = np.maximum(logprobs, np.abs(other.logprobs - first.logprobs))
            if first.gaps is not None and other.gaps is not None:
                deviations = np.maximum(deviations, np.abs(other.gaps.deviations - first.gaps.deviations))
            pairs = zip(first.proofs, other.proofs, strict=True)
            distances = np.maximum(distances, [abs(a.distance_mean - b.distance_mean) for a, b in pairs])
        return cls(
            logprobs=logprobs,
            deviations=deviations,
            distance=float(distances.mean()) if len(distances) else 0.0,
            distance_worst=float(distances.max(initial=0.0)),
        )


def gather(
    policy: Policy,
    file: RolloutFile,
    rows: Mapping[int, Draws],
    *,
    tokens_at_once: int | None = None,
) -> dict[int, RowEvidence]:
    """Computes evidence for rows of a file by one prefill.

    Args:
        policy: The loaded version.
        file: A file whose tokens fit the model's vocabulary and context.
        rows: Row numbers in the file, each with the row's seed and sampling parameters.
        tokens_at_once: See `prefill`.

    Raises:
        InvalidInput: A row does not fit the model.
        NotANumber: The verifier's own logits contain NaN or infinity.
    """
    passes = prefill(policy, prefill_items(file, rows), tokens_at_once=tokens_at_once)
    return compare(passes, file, rows)


def prefill_items(file: RolloutFile, rows: Iterable[int]) -> list[PrefillItem]:
    """Returns the answers of these rows, in this order."""
    return [_item(file.samples[row]) for row in rows]


def _item(sample: Sample) -> PrefillItem:
    if not sample.turns:
        return PrefillItem(sample.prompt_tokens, sample.output_tokens)
    places = drawn_places(sample.turns, drawn=len(sample.output_tokens))
    return PrefillItem(sample.prompt_tokens, sample.tokens_after_prompt, places)


def compare(passes: Iterable[PrefillRows], file: RolloutFile, rows: Mapping[int, Draws]) -> dict[int, RowEvidence]:
    """Compares rows of a file with the states and logits of a prefill of `prefill_items(file, rows)`.

    Args:
        passes: The passes of the prefill, by any engine.
        file: A file whose tokens fit the model's vocabulary and context.
        rows: Row numbers in the file, each with the row's seed and sampling parameters.

    Raises:
        NotANumber: The verifier's own logits contain NaN or infinity.
    """
    samples, answers = [file.samples[row] for row in rows], prefill_items(file, rows)
    numbers, draws = [*rows], [*rows.values()]
    partial = [_PartialRow() for _ in rows]
    evidence: dict[int, RowEvidence] = {}
    outputs = [sample.output_tokens for sample in samples]
    for every in passes:
        part = drawn_rows(every, answers)
        if not part.spans:
            continue
        replayed = _replay(part, samples, draws)
        states = part.states.to("cpu", torch.bfloat16)
        at = 0
        for span in part.spans:
            here = slice(at, at := at + span.stop - span.start)
            partial[span.answer].add(states[here], _slice(replayed, here))
        whole = [span.answer for span in part.spans if span.stop == len(outputs[span.answer])]
        compared = verify_rows([(partial[place].states, samples[place].proofs) for place in whole])
        for place, results in zip(whole, compared, strict=True):
            gaps = partial[place].gaps
            evidence[numbers[place]] = RowEvidence(
                proofs=tuple(results),
                logprobs=gaps.logprobs,
                gaps=None if draws[place].seed is None else gaps,
                excess=gaps.excess,
                variance=gaps.variance,
            )
            partial[place] = _PartialRow()
    return evidence


def drawn_rows(part: PrefillRows, answers: Sequence[PrefillItem]) -> PrefillRows:
    """Returns the rows of drawn tokens; the spans count drawn tokens only."""
    if all(answers[span.answer].places is None for span in part.spans):
        return part
    spans: list[AnswerSpan] = []
    kept: list[NDArray[np.int64]] = []
    begin = 0
    for span in part.spans:
        first, places = answers[span.answer].drawn(span.start, span.stop)
        if len(places):
            spans.append(AnswerSpan(span.answer, first, first + len(places)))
            kept.append(places - span.start + begin)
        begin += span.stop - span.start
    rows = torch.from_numpy(np.concatenate(kept) if kept else np.zeros(0, np.int64)).to(part.states.device)
    return PrefillRows(tuple(spans), part.states[rows], part.logits[rows])


class _PartialRow:
    """States and replay of one answer, collected over several forward passes."""

    def __init__(self) -> None:
        self._states: list[torch.Tensor] = []
        self._gaps: list[Gaps] = []

    def add(self, states: torch.Tensor, gaps: Gaps) -> None:
        self._states.append(states)
        self._gaps.append(gaps)

    @property
    def states(self) -> torch.Tensor:
        return self._states[0] if len(self._states) == 1 else torch.cat(self._states)

    @property
    def gaps(self) -> Gaps:
        if len(self._gaps) == 1:
            return self._gaps[0]
        return Gaps(**{name: np.concatenate([getattr(one, name) for one in self._gaps]) for name in _GAPS})


def _replay(part: PrefillRows, samples: Sequence[Sample], draws: Sequence[Draws]) -> Gaps:
    """Replays all rows of a pass, those of equal sampling parameters together, whatever their seeds.

    Without a seed, only log-probabilities, excess and variance are meaningful.
    """
    groups: dict[tuple[bool, tuple[float, float, int]], list[AnswerSpan]] = {}
    places: dict[tuple[bool, tuple[float, float, int]], list[NDArray[np.int64]]] = {}
    at = 0
    for span in part.spans:
        key = draws[span.answer].seed is not None, draws[span.answer].parameters.of_draws
        groups.setdefault(key, []).append(span)
        places.setdefault(key, []).append(np.arange(at, at := at + span.stop - span.start))
    if len(groups) == 1:
        return _replay_equal(part.logits, part.spans, samples, draws)
    whole = Gaps(**{name: np.empty(at, np.bool_ if name == "mismatches" else np.float32) for name in _GAPS})
    for key, spans in groups.items():
        rows = np.concatenate(places[key])
        logits = part.logits[torch.from_numpy(rows).to(part.logits.device)]
        found = _replay_equal(logits, spans, samples, draws)
        for name in _GAPS:
            getattr(whole, name)[rows] = getattr(found, name)
    return whole


def _replay_equal(
    logits: torch.Tensor, spans: Sequence[AnswerSpan], samples: Sequence[Sample], draws: Sequence[Draws]
) -> Gaps:
    """Replays rows of equal sampling parameters, all with a seed or all without."""
    parameters = draws[spans[0].answer].parameters
    seeds = [seed for span in spans if (seed := draws[span.answer].seed) is not None]
    tokens = np.concatenate([samples[span.answer].output_tokens[span.start : span.stop] for span in spans])
    if not seeds:
        scaled = scale(logits, parameters)
        chosen = scaled.gather(1, torch.from_numpy(tokens.astype(np.int64)).to(scaled.device)[:, None])[:, 0]
        zeros = np.zeros(len(tokens), np.float32)
        softmax = Softmax.room(len(tokens), device=scaled.device)
        weigh(scaled, softmax, scaled.new_empty((2, *scaled.shape)))
        excess, variance = (one.cpu().numpy() for one in surprise(softmax, chosen))
        own = (chosen - softmax.totals()).cpu().numpy()
        never = zeros.astype(np.bool_)
        return Gaps(gaps=zeros, outside=zeros, mismatches=never, logprobs=own, excess=excess, variance=variance)
    streams = [stream(seed, samples[span.answer].sample) for seed, span in zip(seeds, spans, strict=True)]
    keyed = [own for own, span in zip(streams, spans, strict=True) for _ in range(span.start, span.stop)]
    positions = [position for span in spans for position in range(span.start, span.stop)]
    return gaps_of_rows(logits, tokens.tolist(), row_keys(keyed, positions), parameters)


def _slice(gaps: Gaps, here: slice) -> Gaps:
    return Gaps(**{name: getattr(gaps, name)[here] for name in _GAPS})
