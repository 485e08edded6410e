"""Draws the tokens of one batch from our noise, records log-probabilities, passes states to the proof builder.

The hook never waits for an accelerator. It reads tokens and log-probabilities of a step one step later, after vLLM has
synchronised for reasons of its own.

Shapes: b rows of a step, h the width of states, v tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from rollouts.engines.draws import draw_rows, rows_by_parameters
from rollouts.engines.session import QueuedRequest
from rollouts.engines.vllm.rows import Row
from rollouts.sampling.noise import Keys, noise, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import DrawnTokens, NotANumber, first_largest, process, scale
from rollouts.sampling.seeded_draw import draw_seeded
from rollouts.toploc import ProofBuilder


class SamplerHook:
    """The sampler of one batch, used by the logits processor. Rows name their answers by ticket.

    Args:
        builder: Receives the states; None if no proofs are requested.
    """

    def __init__(self, builder: ProofBuilder | None) -> None:
        self.broken = False
        """True if a row of logits had no finite log-sum."""
        self._builder = builder
        self._answers: dict[int, _Answer] = {}
        self._unread: tuple[tuple[int, ...], torch.Tensor, torch.Tensor] | None = None
        self._rows: Sequence[Row] = ()
        self._tickets: tuple[int, ...] = ()
        self._groups: dict[SamplingParameters, list[int]] = {}

    def begin(self, queued: QueuedRequest) -> None:
        """Registers an answer before it joins the batch."""
        request = queued.request
        self._answers[queued.ticket] = _Answer(queued, stream(request.seed, request.sample), queued.first_position)
        queued.begin_proofs(self._builder)

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
        self._take(rows)
        for row in rows:
            if len(row.drawn) != (seen := len(self._answers[row.ticket].logprobs)):
                raise RuntimeError(f"request {row.ticket} has {len(row.drawn)} tokens in vLLM, but {seen} were drawn")
        if self._builder is not None:
            self._builder.add(self._tickets, states_bh, copy=False)
        answers = [self._answers[ticket] for ticket in self._tickets]
        positions = [answer.first_position + len(row.drawn) for answer, row in zip(answers, rows, strict=True)]
        keys = row_keys([answer.stream for answer in answers], positions)
        drawn = draw_rows(logits_bv, keys, self._groups, draw=_draw)
        self._unread = (self._tickets, drawn.tokens, drawn.logprobs)
        return drawn.tokens

    def finish(self, ticket: int) -> list[float]:
        """Returns an answer's log-probabilities and drops all data of the answer."""
        self._read()
        return self._answers.pop(ticket).logprobs

    def _take(self, rows: Sequence[Row]) -> None:
        if rows is not self._rows or not isinstance(rows, tuple):
            self._rows, self._tickets = rows, tuple(row.ticket for row in rows)
            self._groups = rows_by_parameters([self._answers[ticket].queued.parameters for ticket in self._tickets])

    def _read(self) -> None:
        if self._unread is None:
            return
        (tickets, tokens_b, logprobs_b), self._unread = self._unread, None
        for ticket, token, logprob in zip(tickets, tokens_b.tolist(), logprobs_b.tolist(), strict=True):
            self.broken |= not math.isfinite(logprob)
            if answer := self._answers.get(ticket):  # None if it was dropped since
                answer.logprobs.append(logprob)
                answer.queued.report(len(answer.logprobs) - 1, token, logprob)


@dataclass(slots=True)
class _Answer:
    queued: QueuedRequest
    stream: tuple[int, int, int, int]
    first_position: int
    logprobs: list[float] = field(default_factory=list)


def _draw(logits_bv: torch.Tensor, keys: Keys, parameters: SamplingParameters) -> DrawnTokens:
    """Draws tokens without waiting for an accelerator; log-probabilities of broken rows are not finite."""
    if logits_bv.device.type == "cpu":
        with suppress(NotANumber):
            return draw_seeded(logits_bv, keys, parameters)
    scaled_bv = scale(logits_bv, parameters)
    noise_bv = noise(keys, logits_bv.shape[1], device=logits_bv.device)
    tokens_b = first_largest(process(scaled_bv, noise_bv, parameters))
    tokens_b = tokens_b.clamp_max(logits_bv.shape[1] - 1)  # argmax of NaNs may be out of range
    chosen_b = scaled_bv.gather(1, tokens_b[:, None])[:, 0]
    return DrawnTokens(tokens_b, chosen_b - torch.logsumexp(scaled_bv, dim=1))
