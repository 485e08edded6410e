"""Prefill by vLLM: states and logits of existing answers from one forward pass over prompt and answer.

In a numerics class of CPUs, `prefill_steps` lays out the forward passes, and `step_model` runs them. Elsewhere vLLM's
scheduler does both: for each answer, vLLM gets a request for one further token, a hook keeps the states that produced
the answer, and the further token is ignored; answers to one prompt share whole blocks of its keys and values
(`prefix_sharing`). Within a numerics class the results equal those of decoding to the bit
(docs/decisions/0082-numerics-classes.md).

Shapes: n tokens of a step, h hidden, v tokens of the vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import torch

from protocol.errors import InvalidInput
from rollouts.engines.vllm.prefill_steps import steps
from rollouts.engines.vllm.running import RunningVllm
from rollouts.engines.vllm.step_states import StepStates
from rollouts.errors import EngineFailed
from rollouts.models.facts import ModelFacts
from rollouts.prefill import AnswerSpan, PrefillItem, PrefillRows

if TYPE_CHECKING:
    from rollouts.engines.vllm.step_model import StepModel

_Taken = tuple[AnswerSpan, torch.Tensor]
"""States of tokens of an answer, [n, h]."""
_LOGIT_BYTES = {"cpu": 128 << 20}
_LOGIT_BYTES_ELSEWHERE = 2 << 30
"""Maximum bytes of the float32 logits that one call of the output layer computes."""


class VllmPrefill:
    """One prefill of any number of answers.

    Args:
        running: The vLLM wrapper, without unfinished requests.
        facts: Facts of the loaded model.
        device: The device; its type determines the maximum bytes of logits.
        rows: Maximum answers in a step of vLLM's scheduler.
        tokens_at_once: Maximum tokens of a step; a longer answer has a step of its own.

    Raises:
        InvalidInput: A token is outside the vocabulary, or an answer does not fit in the model's context.
    """

    def __init__(
        self, running: RunningVllm, facts: ModelFacts, *, device: torch.device, rows: int, tokens_at_once: int
    ) -> None:
        self._running = running
        self._facts = facts
        self._rows = rows
        self._tokens_at_once = tokens_at_once
        size = _LOGIT_BYTES.get(device.type, _LOGIT_BYTES_ELSEWHERE)
        self._logit_rows = max(1, size // (4 * facts.vocabulary))

    def rows(self, items: Sequence[PrefillItem]) -> Iterator[PrefillRows]:
        """Yields the states and logits of every token of every answer; spans of an answer come in order.

        Args:
            items: The answers. Their order only affects which answers share a step.

        Raises:
            EngineFailed: vLLM did not compute all tokens.
            Exception: vLLM crashed with this exception, of any type.
        """
        self._check(items)
        model = self._running.step_model()
        left = sum(len(item.output) for item in items)
        with closing(self._scheduled(items) if model is None else self._laid_out(model, items)) as every_step:
            for taken in every_step:
                for part in self._logits(taken):
                    left -= len(part.states)
                    yield part
        if left:
            raise EngineFailed(f"vLLM did not compute {left} tokens of a prefill")

    def _laid_out(self, model: StepModel, items: Sequence[PrefillItem]) -> Generator[deque[_Taken]]:
        """Yields the states of each step."""
        for step in steps(items, blocks=model.blocks, block=model.block, tokens_at_once=self._tokens_at_once):
            states_kh = model.states(step)
            yield deque(zip(step.spans, torch.split(states_kh, [span.stop for span in step.spans]), strict=True))

    def _scheduled(self, items: Sequence[PrefillItem]) -> Generator[deque[_Taken]]:
        """Yields the states of each step of vLLM's scheduler; the caller empties the queue."""
        states = StepStates(items)
        self._running.prefill_into(states)
        waiting, under_way = deque(range(len(items))), 0
        finished = False
        try:
            while waiting or under_way:
                if not under_way:
                    under_way = self._add(items, waiting)
                under_way -= len(self._running.step())
                yield states.taken
            finished = True
        finally:
            if not finished:
                self._running.abort(range(len(items)))
            self._running.prefill_into(None)

    def _check(self, items: Sequence[PrefillItem]) -> None:
        facts = self._facts
        for index, item in enumerate(items):
            if len(item.prompt) + len(item.output) > facts.context:
                raise InvalidInput(
                    f"answer {index} has {len(item.prompt)} prompt and {len(item.output)} output tokens, more than the "
                    f"model's context of {facts.context}"
                )
            for tokens in (item.prompt, item.output):
                if not 0 <= int(tokens.min()) <= int(tokens.max()) < facts.vocabulary:
                    raise InvalidInput(f"answer {index} has a token outside the vocabulary of {facts.vocabulary}")

    def _add(self, items: Sequence[PrefillItem], waiting: deque[int]) -> int:
        """Queues the answers of the next step; returns their number."""
        added = tokens = 0
        while waiting and added < self._rows:
            item = items[waiting[0]]
            given = (*item.prompt.tolist(), *item.output[:-1].tolist())
            if added and tokens + len(given) > self._tokens_at_once:
                break
            shared = len(item.prompt) - 1  # the prompt's last token produces the answer's first one
            self._running.add(waiting.popleft(), given, new_tokens=1, shared=shared)
            added, tokens = added + 1, tokens + len(given)
        return added

    def _logits(self, taken: deque[_Taken]) -> Iterator[PrefillRows]:
        """Computes the logits of states, several spans at once up to the limit of bytes."""
        while taken:
            spans: list[AnswerSpan] = []
            rows: list[torch.Tensor] = []
            room = self._logit_rows
            while taken and room:
                span, own = taken.popleft()
                if len(own) > room:
                    middle = span.start + room
                    taken.appendleft((AnswerSpan(span.answer, middle, span.stop), own[room:]))
                    span, own = AnswerSpan(span.answer, span.start, middle), own[:room]
                spans.append(span)
                rows.append(own)
                room -= len(own)
            together = torch.cat(rows)
            yield PrefillRows(tuple(spans), together, self._running.output_layer(together))
