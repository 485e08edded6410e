"""Draws the tokens of one batch from our noise, records log-probabilities, passes states to the proof builder.

The hook never waits for an accelerator. It reads the log-probabilities of a step one step later, after vLLM has
synchronised for reasons of its own.

Shapes: b rows of a step, h the width of states, v tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rollouts.engines.interface import SampleRequest
from rollouts.engines.vllm.rows import Row
from rollouts.sampling.noise import noise, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import first_largest, process, scale
from rollouts.toploc import ProofBuilder


class SamplerHook:
    """The sampler of one call of `generate`, used by the logits processor.

    Args:
        parameters: Sampling parameters of all answers.
        builder: Receives the states; None if no proofs are requested.
    """

    def __init__(self, parameters: SamplingParameters, builder: ProofBuilder | None) -> None:
        self.broken = False
        """True if a row of logits had no finite log-sum."""
        self._parameters = parameters
        self._builder = builder
        self._streams: dict[int, tuple[int, int, int, int]] = {}
        self._logprobs: dict[int, list[float]] = {}
        self._unread: tuple[tuple[int, ...], torch.Tensor] | None = None
        self._rows: Sequence[Row] = ()
        self._samples: tuple[int, ...] = ()

    def begin(self, request: SampleRequest) -> None:
        """Registers an answer before it joins the batch."""
        self._streams[request.sample] = stream(request.seed, request.sample)
        self._logprobs[request.sample] = []

    def draw(self, rows: Sequence[Row], states_bh: torch.Tensor, logits_bv: torch.Tensor) -> torch.Tensor:
        """Draws a token for each row, int64 [b].

        Args:
            rows: The answers of the rows; passing the same tuple object again skips per-row work.
            states_bh: Input of the output layer; must not be overwritten afterwards.
            logits_bv: Output of the output layer.

        Raises:
            RuntimeError: vLLM's number of tokens in a row differs from the number drawn here.
        """
        self._read()
        samples = self._samples_of(rows)
        for row in rows:
            if len(row.drawn) != len(self._logprobs[row.sample]):
                seen = len(self._logprobs[row.sample])
                raise RuntimeError(f"sample {row.sample} has {len(row.drawn)} tokens in vLLM, but {seen} were drawn")
        if self._builder is not None:
            self._builder.add(samples, states_bh, copy=False)
        keys = row_keys([self._streams[sample] for sample in samples], [len(row.drawn) for row in rows])
        scaled_bv = scale(logits_bv, self._parameters)
        noise_bv = noise(keys, logits_bv.shape[1], device=logits_bv.device)
        tokens_b = first_largest(process(scaled_bv, noise_bv, self._parameters))
        tokens_b = tokens_b.clamp_max(logits_bv.shape[1] - 1)  # argmax of NaNs may be out of range
        chosen_b = scaled_bv.gather(1, tokens_b[:, None])[:, 0]
        self._unread = (samples, chosen_b - torch.logsumexp(scaled_bv, dim=1))
        return tokens_b

    def finish(self, sample: int) -> list[float]:
        """Returns an answer's log-probabilities and drops all data of the answer."""
        self._read()
        del self._streams[sample]
        return self._logprobs.pop(sample)

    def _samples_of(self, rows: Sequence[Row]) -> tuple[int, ...]:
        if rows is not self._rows or not isinstance(rows, tuple):
            self._rows, self._samples = rows, tuple(row.sample for row in rows)
        return self._samples

    def _read(self) -> None:
        if self._unread is None:
            return
        (samples, logprobs_b), self._unread = self._unread, None
        for sample, logprob in zip(samples, logprobs_b.tolist(), strict=True):
            self._logprobs[sample].append(logprob)
            self.broken |= not math.isfinite(logprob)
