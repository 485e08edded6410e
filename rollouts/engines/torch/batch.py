"""Continuous batch of answers that each grow by one token per step; freed rows are reused immediately."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from transformers.cache_utils import DynamicCache

from rollouts.engines.draws import draw_rows, rows_by_parameters
from rollouts.engines.interface import FinishReason, SampleRequest
from rollouts.engines.session import QueuedRequest
from rollouts.engines.torch.cache import Layer, RowCache, layers_of
from rollouts.models.policy import Policy
from rollouts.sampling.noise import row_keys, stream
from rollouts.toploc import ProofBuilder

_TOKENS_AT_ONCE = {"cpu": 1024}
_TOKENS_AT_ONCE_ELSEWHERE = 16_384
"""Prompt tokens per forward pass; bounded, so that a stop request is noticed between two passes."""


@dataclass(slots=True)
class GrowingCompletion:
    """An answer in progress."""

    queued: QueuedRequest
    stream: tuple[int, int, int, int]
    first_position: int
    most_new_tokens: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def ticket(self) -> int:
        """The request's ticket."""
        return self.queued.ticket

    @property
    def position(self) -> int:
        """Position of the token that the model reads next."""
        return len(self.queued.request.prompt_tokens) - 1 + len(self.tokens)

    @property
    def newest(self) -> int:
        """The token that the model reads next: the prompt's last token, or the last drawn one."""
        return self.tokens[-1] if self.tokens else self.queued.request.prompt_tokens[-1]


class GenerationBatch:
    """Up to `rows` answers of one version.

    The prompt without its last token is computed once for all samples that share it. The last prompt token is each
    answer's first input in `step`. So every state that produces a token comes from a step with one token per row.

    Args:
        policy: The loaded version.
        layers: Template of the cache's shapes and types; see `RowCache`.
        rows: Maximum answers at once.
        budget: Maximum bytes of keys and values.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        layers: Sequence[Layer],
        rows: int,
        budget: int,
    ) -> None:
        self.answers: list[GrowingCompletion] = []
        self._tickets: tuple[int, ...] | None = None
        self._admitted: list[QueuedRequest] = []
        self._policy = policy
        self.most = rows
        self._cache = RowCache(layers, rows=rows, budget=budget)
        self._prompts: dict[tuple[int, ...], list[Layer]] = {}

    @property
    def tickets(self) -> tuple[int, ...]:
        """Tickets of `answers`; the same tuple object until they change."""
        if self._tickets is None:
            self._tickets = tuple([answer.ticket for answer in self.answers])
        return self._tickets

    @property
    def in_progress(self) -> set[int]:
        """Tickets of the answers, and of those whose admission failed."""
        return {*self.tickets, *(queued.ticket for queued in self._admitted)}

    @property
    def most_positions(self) -> int:
        """Maximum number of positions of an answer that has the cache alone."""
        return self._cache.most_positions

    def too_long(self, waiting: deque[QueuedRequest]) -> list[QueuedRequest]:
        """Returns the requests, in the batch or next to join, whose next token would not fit into an empty cache."""
        most = self.most_positions
        joining = islice(waiting, self.most - len(self.answers))
        return [
            *(answer.queued for answer in self.answers if answer.position >= most),
            *(queued for queued in joining if len(queued.request.prompt_tokens) > most),
        ]

    @torch.inference_mode()
    def admit(self, waiting: deque[QueuedRequest], *, check: Callable[[], None], builder: ProofBuilder | None) -> None:
        """Takes requests from the front of `waiting` while rows are free.

        The order must be that of `RequestQueue.waiting`.

        Args:
            waiting: The queued requests.
            check: Called between two passes over prompts; its exceptions propagate.
            builder: Builds proofs; None if none are requested.

        Raises:
            CacheFull: Keys and values do not fit.
        """
        taken = [waiting.popleft() for _ in range(min(self.most - len(self.answers), len(waiting)))]
        if not taken:
            return
        self._admitted = taken
        longest = max(len(queued.request.prompt_tokens) for queued in taken)
        self._cache.reserve(longest, rows=len(self.answers) + len(taken))
        self._prefill([queued.request for queued in taken], check)
        for queued in taken:
            request = queued.request
            length = len(request.prompt_tokens) - 1
            if length:
                self._cache.put(len(self.answers), self._prompts[request.prompt_tokens], length=length)
            self.answers.append(
                GrowingCompletion(
                    queued, stream(request.seed, request.sample), queued.first_position, queued.most_new_tokens
                )
            )
            queued.begin_proofs(builder)
        self._tickets, self._admitted = None, []
        # Keeps a prompt whose other samples still wait.
        wanted = next((queued.request.prompt_tokens for queued in waiting if not queued.continues), None)
        self._prompts = {prompt: layers for prompt, layers in self._prompts.items() if prompt == wanted}

    @torch.inference_mode()
    def step(self) -> torch.Tensor:
        """Draws the next token of every answer; returns the states that produced the tokens, [b, h].

        Raises:
            CacheFull: Keys and values do not fit.
            NotANumber: The model computed logits with NaN or infinity.
        """
        device = self._policy.device
        positions = [answer.position for answer in self.answers]
        at = torch.tensor(positions, device=device)
        mask = self._cache.aim(at, furthest=max(positions))
        newest = torch.tensor([[answer.newest] for answer in self.answers], device=device)
        states, logits = self._policy.states_and_logits(newest, positions=at[:, None], mask=mask, cache=self._cache)
        keys = row_keys(
            [answer.stream for answer in self.answers],
            [answer.first_position + len(answer.tokens) for answer in self.answers],
        )
        drawn = draw_rows(logits[:, 0], keys, rows_by_parameters([answer.queued.parameters for answer in self.answers]))
        for answer, token, logprob in zip(self.answers, drawn.tokens.tolist(), drawn.logprobs.tolist(), strict=True):
            answer.tokens.append(token)
            answer.logprobs.append(logprob)
            answer.queued.report(len(answer.tokens) - 1, token, logprob)
            if token in self._policy.facts.end_tokens:
                answer.finish = FinishReason.EOS
            elif len(answer.tokens) == answer.most_new_tokens:
                answer.finish = FinishReason.LENGTH
        return states[:, 0]

    def take_finished(self) -> list[GrowingCompletion]:
        """Removes and returns the finished answers."""
        finished = [answer for answer in self.answers if answer.finish is not None]
        if finished:
            self.drop(frozenset(answer.ticket for answer in finished))
        return finished

    @torch.inference_mode()
    def drop(self, tickets: frozenset[int]) -> None:
        """Removes answers; the last rows move into the freed rows."""
        for row in reversed(range(len(self.answers))):
            if self.answers[row].ticket not in tickets:
                continue
            last = self.answers.pop()
            if row < len(self.answers):
                self._cache.move(len(self.answers), row, length=last.position)
                self.answers[row] = last
        self._tickets = None

    def _prefill(self, requests: Sequence[SampleRequest], check: Callable[[], None]) -> None:
        """Computes prompts that are not cached, in passes of prompts with similar lengths."""
        limit = _TOKENS_AT_ONCE.get(self._policy.device.type, _TOKENS_AT_ONCE_ELSEWHERE)
        new = {request.prompt_tokens for request in requests if len(request.prompt_tokens) > 1} - self._prompts.keys()
        together: list[tuple[int, ...]] = []
        for prompt in sorted(new, key=len):
            if together and len(prompt) * (len(together) + 1) > limit:
                self._fill(together, limit, check)
                together = []
            together.append(prompt)
        if together:
            self._fill(together, limit, check)

    def _fill(self, prompts: Sequence[tuple[int, ...]], limit: int, check: Callable[[], None]) -> None:
        longest = max(map(len, prompts)) - 1
        padded = [[*prompt[:-1], *[0] * (longest + 1 - len(prompt))] for prompt in prompts]
        tokens = torch.tensor(padded, device=self._policy.device)
        cache = DynamicCache()
        width = max(1, limit // len(prompts))
        for start in range(0, longest, width):
            check()
            self._policy.fill(tokens[:, start : start + width], cache=cache)
        filled = layers_of(cache)
        for row, prompt in enumerate(prompts):
            length = len(prompt) - 1
            self._prompts[prompt] = [
                (keys[row, :, :length].clone(), values[row, :, :length].clone()) for keys, values in filled
            ]
