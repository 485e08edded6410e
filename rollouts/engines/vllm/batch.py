"""Runs a batch of requests through vLLM and yields completions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from protocol.identifiers import Digest
from rollouts.engines.interface import Completion, FinishReason, SampleRequest
from rollouts.engines.vllm.running import RunningVllm
from rollouts.engines.vllm.sampler_hook import SamplerHook
from rollouts.errors import EngineFailed
from rollouts.sampling.parameters import SamplingParameters
from rollouts.toploc import PendingProofs, ProofBuilder, Unprovable


@dataclass(frozen=True, slots=True)
class _Ended:
    """A finished answer whose proofs may be pending; `proofs` is None if none were requested."""

    sample: int
    tokens: tuple[int, ...]
    logprobs: list[float]
    proofs: PendingProofs | None

    @property
    def ready(self) -> bool:
        return self.proofs is None or self.proofs.done()


class VllmBatch:
    """A batch of requests.

    Args:
        running: The vLLM wrapper.
        parameters: Sampling parameters of all answers.
        end_tokens: Tokens that end an answer.
        builder: The proof builder; None if no proofs are requested.
        rows: Maximum answers at once.
        prompt_tokens_at_once: Maximum prompt tokens that join the batch between two steps; a longer prompt joins alone.
    """

    def __init__(
        self,
        running: RunningVllm,
        parameters: SamplingParameters,
        *,
        end_tokens: frozenset[int],
        builder: ProofBuilder | None,
        rows: int,
        prompt_tokens_at_once: int,
    ) -> None:
        self._running = running
        self._parameters = parameters
        self._end_tokens = end_tokens
        self._builder = builder
        self._rows = rows
        self._prompt_tokens_at_once = prompt_tokens_at_once
        self._drawing = SamplerHook(parameters, builder)
        self._growing: set[int] = set()
        running.begin(self._drawing)

    def completions(
        self, requests: Iterable[SampleRequest], version: Digest, check: Callable[[], None]
    ) -> Iterator[Completion]:
        """Yields the completions of the requests; proofs of finished answers are built while others are generated.

        Args:
            requests: The requests.
            version: The loaded version.
            check: Called between two steps; its exceptions propagate.

        Raises:
            EngineFailed: A logit or a state is NaN or infinite.
            Exception: vLLM crashed with this exception, of any type.
        """
        waiting = deque(requests)
        proving: deque[_Ended] = deque()
        while waiting or self._growing:
            check()
            self._feed(waiting)
            ended = [self._end(sample, tokens) for sample, tokens in self._running.step()]
            if self._drawing.broken:
                raise EngineFailed("a row of logits has no finite log-sum", hint="load the version again")
            proving.extend(ended)
            while proving and proving[0].ready:
                yield self._completion(proving.popleft(), version)
        while proving:
            check()
            yield self._completion(proving.popleft(), version)

    def abort(self) -> None:
        """Removes unfinished answers from vLLM."""
        self._running.abort(self._growing)
        self._growing.clear()

    def forget(self) -> None:
        """Drops the states of unfinished answers after vLLM has crashed."""
        if self._builder is not None:
            for sample in self._growing:
                self._builder.discard(sample)

    def _feed(self, waiting: deque[SampleRequest]) -> None:
        joining = 0
        while waiting and len(self._growing) < self._rows:
            length = len(waiting[0].prompt_tokens)
            if joining and joining + length > self._prompt_tokens_at_once:
                return
            joining += length
            request = waiting.popleft()
            self._drawing.begin(request)
            self._growing.add(request.sample)
            self._running.add(request, self._parameters, end_tokens=self._end_tokens)

    def _end(self, sample: int, tokens: tuple[int, ...]) -> _Ended:
        self._growing.remove(sample)
        proofs = None if self._builder is None else self._builder.finish(sample, rows=len(tokens))
        return _Ended(sample, tokens, self._drawing.finish(sample), proofs)

    def _completion(self, ended: _Ended, version: Digest) -> Completion:
        if len(ended.tokens) != len(ended.logprobs):
            raise EngineFailed(f"vLLM returned {len(ended.tokens)} tokens, but drew {len(ended.logprobs)}")
        return Completion(
            sample=ended.sample,
            tokens=ended.tokens,
            logprobs=np.array(ended.logprobs, dtype=np.float32),
            finish=FinishReason.EOS if ended.tokens[-1] in self._end_tokens else FinishReason.LENGTH,
            proofs=_proofs(ended),
            version=version,
        )


def _proofs(ended: _Ended) -> bytes:
    try:
        return b"" if ended.proofs is None else ended.proofs.result()
    except Unprovable as error:
        raise EngineFailed(error.detail, hint=error.hint) from error
