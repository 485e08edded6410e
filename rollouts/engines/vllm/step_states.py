"""Selection of the hidden states that produced answers among all states of a vLLM step.

Shapes: n tokens of a step, b requests of a step, h hidden, v tokens of the vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from rollouts.engines.vllm.rows import Row
from rollouts.prefill import AnswerSpan, PrefillItem

OutputLayer = Callable[[torch.Tensor], torch.Tensor]
"""vLLM's output layer: logits [n, v] of states [n, h]."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """The tokens of one request in a step of vLLM.

    Args:
        ticket: Number of the request, an index of `StepStates.items`.
        computed: Tokens of the request that earlier steps computed.
        start: Index, in the step, of the first token that this step computes for the request.
        stop: Index after the last such token.
    """

    ticket: int
    computed: int
    start: int
    stop: int


class StepStates:
    """Keeps those states of a step that produced tokens of answers, until `VllmPrefill` has computed their logits.

    Args:
        items: The answers; a request's ticket is an index.
    """

    def __init__(self, items: Sequence[PrefillItem]) -> None:
        self._items = items
        self.taken: deque[tuple[AnswerSpan, torch.Tensor]] = deque()

    def take(self, parts: Sequence[StepPart], states_nh: torch.Tensor) -> None:
        """Keeps the states of one step that produced tokens of answers.

        Args:
            parts: The requests of the step.
            states_nh: The states of all tokens of the step.
        """
        for part in parts:
            item = self._items[part.ticket]
            before = len(item.prompt) - 1  # the prompt's last token produces the answer's first one
            first = max(part.computed, before)
            last = min(part.computed + part.stop - part.start, before + len(item.output))
            if first < last:
                rows = states_nh[part.start + first - part.computed : part.start + last - part.computed]
                self.taken.append((AnswerSpan(part.ticket, first - before, last - before), rows.clone()))

    def draw(self, rows: Sequence[Row], states_bh: torch.Tensor, logits_bv: torch.Tensor) -> torch.Tensor:
        """Returns token 0 for each row; the prefill ignores it, but vLLM needs one."""
        del rows, states_bh
        return torch.zeros(len(logits_bv), dtype=torch.int64, device=logits_bv.device)
