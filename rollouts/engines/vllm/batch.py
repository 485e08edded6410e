"""Runs a session's requests through vLLM and yields completions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.identifiers import Digest
from rollouts.engines.batch_usage import BatchUsage
from rollouts.engines.interface import Completion, FinishReason
from rollouts.engines.session import QueuedRequest, RequestQueue, is_built
from rollouts.engines.vllm.running import RunningVllm
from rollouts.engines.vllm.sampler_hook import SamplerHook
from rollouts.errors import EngineFailed
from rollouts.toploc import PendingProofs, ProofBuilder, Unprovable


@dataclass(frozen=True, slots=True)
class _Ended:
    """A finished answer whose proofs may be pending; `proofs` is None if none were requested."""

    queued: QueuedRequest
    tokens: tuple[int, ...]
    logprobs: list[float]
    proofs: PendingProofs | None


class VllmBatch:
    """The batch of a session.

    Args:
        running: The vLLM wrapper.
        queue: The session's requests.
        usage: Receives the size of the batch in every step.
        end_tokens: Tokens that end an answer.
        builder: The proof builder; None if no proofs are requested.
        rows: Maximum answers at once.
        prompt_tokens_at_once: Maximum prompt tokens that join the batch between two steps; a longer prompt joins alone.
    """

    def __init__(
        self,
        running: RunningVllm,
        queue: RequestQueue,
        usage: BatchUsage,
        *,
        end_tokens: frozenset[int],
        builder: ProofBuilder | None,
        rows: int,
        prompt_tokens_at_once: int,
    ) -> None:
        self._running = running
        self._queue = queue
        self._usage = usage
        self._end_tokens = end_tokens
        self._builder = builder
        self._rows = rows
        self._prompt_tokens_at_once = prompt_tokens_at_once
        self._drawing = SamplerHook(builder)
        self._growing: dict[int, QueuedRequest] = {}
        running.begin(self._drawing)

    def completions(self, version: Digest) -> Iterator[tuple[int, Completion]]:
        """Yields tickets and completions until no request is left.

        Proofs of finished answers are built while others are generated.

        Args:
            version: The loaded version.

        Raises:
            EngineFailed: A logit or a state is NaN or infinite.
            Exception: vLLM crashed with this exception, of any type.
        """
        proving: deque[_Ended] = deque()
        while True:
            if dropped := self._queue.poll():
                self._drop(dropped)
                proving = deque(ended for ended in proving if ended.queued.ticket in self._queue.left)
            if not (self._queue.waiting or self._growing):
                break
            self._feed(version)
            self._usage.note(len(self._growing))
            ended = [self._end(ticket, tokens) for ticket, tokens in self._running.step()]
            if self._drawing.broken:
                raise EngineFailed("a row of logits has no finite log-sum", hint="load the version again")
            proving.extend(ended)
            while proving and is_built(proving[0].proofs):
                yield self._completion(proving.popleft(), version)
        while proving:
            yield self._completion(proving.popleft(), version)

    def abort(self) -> None:
        """Removes unfinished answers from vLLM."""
        self._drop(list(self._growing))

    def forget(self) -> None:
        """Drops the states of unfinished answers after vLLM has crashed."""
        if self._builder is not None:
            for ticket in self._growing:
                self._builder.discard(ticket)

    def _drop(self, tickets: list[int]) -> None:
        growing = [ticket for ticket in tickets if self._growing.pop(ticket, None) is not None]
        self._running.abort(growing)
        for ticket in growing:
            self._drawing.finish(ticket)
            if self._builder is not None:
                self._builder.discard(ticket)

    def _feed(self, version: Digest) -> None:
        waiting = self._queue.waiting
        joining = 0
        while waiting and len(self._growing) < self._rows:
            prompt = waiting[0].request.prompt_tokens
            if joining and joining + len(prompt) > self._prompt_tokens_at_once:
                return
            joining += len(prompt)
            queued = waiting.popleft()
            self._drawing.begin(queued)
            self._growing[queued.ticket] = queued
            self._running.add(
                queued.ticket,
                prompt,
                new_tokens=queued.most_new_tokens,
                end_tokens=self._end_tokens,
                salt=version,
            )

    def _end(self, ticket: int, tokens: tuple[int, ...]) -> _Ended:
        queued = self._growing.pop(ticket)
        proofs = queued.finish_proofs(self._builder, tokens=len(tokens))
        return _Ended(queued, tokens, self._drawing.finish(ticket), proofs)

    def _completion(self, ended: _Ended, version: Digest) -> tuple[int, Completion]:
        if len(ended.tokens) != len(ended.logprobs):
            raise EngineFailed(f"vLLM returned {len(ended.tokens)} tokens, but drew {len(ended.logprobs)}")
        try:
            completion = ended.queued.completion(
                tokens=ended.tokens,
                logprobs=ended.logprobs,
                finish=FinishReason.EOS if ended.tokens[-1] in self._end_tokens else FinishReason.LENGTH,
                proofs=ended.proofs,
                version=version,
            )
        except Unprovable as error:
            raise EngineFailed(error.detail, hint=error.hint) from error
        return ended.queued.ticket, completion
